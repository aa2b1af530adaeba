"""The tables and figures of FedSA (Zhou et al., AAAI 2025)."""
