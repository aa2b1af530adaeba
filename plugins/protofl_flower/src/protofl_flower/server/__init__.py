"""The side of the run: its pool of nodes, and the versions of clients that count."""
