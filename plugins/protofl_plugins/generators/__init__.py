"""Image generators on the server (FedKTL): one folder or file each."""
