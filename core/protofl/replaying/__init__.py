"""The server's half of a run again, on the uploads that the run has kept.

From a run's folder come its options (``config.json``, changed by `changes`), the `uploads` of each
round, and what the replay is held against: the record's figures and the weights that were kept. The
`server` is that of `rounds`; what it comes to goes back to the caller, and nothing is written.
"""
