"""Transport of payloads: encodings, and validation before a hook sees a payload."""
