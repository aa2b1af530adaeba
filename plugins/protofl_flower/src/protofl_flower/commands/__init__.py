"""The commands ``protofl deploy`` and ``protofl node``."""
