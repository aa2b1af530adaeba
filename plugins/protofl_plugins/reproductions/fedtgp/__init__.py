"""The tables and figures of FedTGP (Zhang et al., AAAI 2024)."""
