"""Hosts in other processes: where clients go, who works when, and what becomes of ended hosts."""
