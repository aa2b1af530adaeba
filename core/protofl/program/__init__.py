"""What a Python program uses: a run's objects in place of names, sessions, what it shows."""
