"""Benchmarks: all methods under equal conditions."""
