"""Runs: the way from a request to a record, and the Python interface.

Imports: data, errors, federation, hooks, records, system.
Start with ``python_api.py`` (`protofl.run`), then ``lifecycle.py`` (plan, dry run, training).
"""
