"""What crosses between server and clients: payloads, knowledge, weights, names."""
