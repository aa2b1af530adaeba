"""Metrics of class scores beside accuracy."""
