"""One run, from the request to the record, and the Python API.

Imports: data, errors, federation, hooks, records, system.
Start with ``program/run.py`` (`protofl.run`) and ``running/run.py`` (a run's life).
"""
