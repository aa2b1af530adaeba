"""Metrics of class scores beside accuracy; the mathematics is in `protofl.functional`."""
