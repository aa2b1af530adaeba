"""This machine: its cores and devices, fresh interpreters on it, and a limit on time."""
