"""Commands of the package, for `protofl`."""
