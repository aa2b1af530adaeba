"""What a hook sees: the client, the server, a batch, the run."""
