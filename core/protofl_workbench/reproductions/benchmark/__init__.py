"""Benchmarks: all methods in the same settings, each tuned with the same budget.

Start with ``benchmark_execution.py`` (`run_benchmark`).
"""
