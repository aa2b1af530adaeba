"""The command line of protofl."""
