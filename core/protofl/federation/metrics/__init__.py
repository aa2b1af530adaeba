"""Metrics: figures of clients' and the server's scores beside accuracy, as plugins count them."""
