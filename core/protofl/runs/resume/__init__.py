"""Runs that have been done before."""
