"""Recorded runs as objects: figures, weights, predictions, observations, scores of new data.

``removal.py`` removes runs.

Imports: data, errors, federation, hooks, records, system.
Start with ``recorded_run.py`` (`protofl.load_run`), then ``scorer.py``.
"""
