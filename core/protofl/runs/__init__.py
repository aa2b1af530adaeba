"""One run, from the request to the record, and the Python API.

Imports: data, errors, federation, hooks, records, system.
Start with ``python_api.py`` (`protofl.run`), then ``lifecycle.py`` (plan, dry step, training).
"""
