"""The tables and figures of FedKTL (Zhang et al., CVPR 2024)."""
