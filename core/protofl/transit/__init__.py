"""Between a hook and the wire: what several methods send, merged."""
