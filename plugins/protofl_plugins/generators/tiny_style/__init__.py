"""`tiny-style`: a small style-based generator of our own, its training, and its plugin."""
