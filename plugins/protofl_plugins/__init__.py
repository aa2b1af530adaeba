"""The plugins that ship with protofl, declared as entry points like anybody's."""
