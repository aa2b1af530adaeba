"""Jobs for hosts, their replies, and pools that carry them."""
