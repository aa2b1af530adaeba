"""Views that hooks receive: the client, the server, a batch, the run."""
