"""Hook specifications: what each kind of plugin provides."""
