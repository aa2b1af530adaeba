"""The Flower app of deployed runs, which `flwr run` packs; one text for all runs and methods."""
