"""The dry run: two short rounds on copies of two clients, and the checks that run in them."""
