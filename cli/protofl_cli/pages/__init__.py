"""Texts of `protofl show`, `card` and the other pages."""
