"""The tables of FedORGP (Guo et al., 2025)."""
