"""Hook specs, plugins, and what hooks see and exchange: views, payloads, models.

Imports: data, errors, functional, system.
Start with ``hookspecs/method.py``, ``views/client.py`` and ``plugin/composition.py``.
"""
