"""The side of a node: its resident host, its clients' files, its data and its policy."""
