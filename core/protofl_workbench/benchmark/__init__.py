"""Benchmarks: all methods in the same settings, each tuned with the same budget.

Imports: batch, comparing, plots, reproductions, and core layers.
Start with ``benchmark_execution.py`` (`run_benchmark`).
"""
