"""A round, in order: what the server does, what hosts are asked, what it all adds up to."""
