"""Deployment through Flower: backend, data set and commands of runs on several machines.

The run is in one process on the server, and its clients are on nodes. `protocol` has the messages
between both, `server` the pool of the run, `node` the resident host of a node, `deployment` the
programs and files on both sides, `commands` what users type. Nothing imports this package: protofl
finds the backend ``flower``, the data set ``nodes`` and the commands ``deploy`` and ``node`` by
their entry points.

Start with ``backend.py``, then ``server/node_pool.py`` and ``node/host.py``.
"""
