"""Transport of payloads: encodings, and the gate's checks before a hook sees a payload."""
