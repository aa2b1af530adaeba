"""Models of clients: architectures of features and a head, their training and their cost."""
