"""The server's half of a run again, on the uploads that the run has kept."""
