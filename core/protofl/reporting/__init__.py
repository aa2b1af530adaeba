"""A page about runs: HTML in one file, which needs no network and reads without its script."""
