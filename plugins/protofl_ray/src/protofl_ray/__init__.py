"""The backend with Ray actors, on this machine or on a cluster.

Nothing imports this package: protofl finds the backend ``ray`` by its entry point.

Start with ``backend.py``.
"""
