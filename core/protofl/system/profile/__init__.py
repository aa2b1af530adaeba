"""Where the time of a run goes, recorded with ``--profile``."""
