"""Hook specifications: the hooks of each kind of plugin."""
