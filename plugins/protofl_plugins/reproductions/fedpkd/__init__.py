"""The tables and figures of FedPKD (Lyu et al., ICDCS 2023)."""
