"""Plugins: discovery, options, composition."""
