"""Hook specs, plugins, and the objects that hooks receive and return: views, payloads, models.

Imports: data, errors, functional, system.
Start with ``hookspecs/method.py``, ``views/client.py`` and ``plugin/composition.py``.
"""
