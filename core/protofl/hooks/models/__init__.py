"""Models of clients: architectures that split into features and a head, and what they cost."""
