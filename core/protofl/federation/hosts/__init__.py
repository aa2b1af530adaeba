"""Hosts: the work on clients, and where they are kept between it."""
