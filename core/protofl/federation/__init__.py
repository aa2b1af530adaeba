"""A federation: the plan, clients on hosts, participation, rounds and their metrics.

Imports: data, errors, functional, hooks, records, system.
Start with ``plan.py``, then ``federation.py`` (a round in six steps) and ``host.py``.
"""
