"""Text encoders on the server (FedTSP): one file each."""
