"""Texts of `protofl show` and of other pages."""
