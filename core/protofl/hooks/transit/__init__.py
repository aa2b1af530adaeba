"""Between a hook and the wire: what becomes of a payload before it is bytes.

`hooks` calls several plugins around one hook: wrappers, and methods whose payloads are merged
(`merging`). `codec` has wrappers encode the outcome, with the `forms` that say what decoding will
make of it; the receiver's end of that is in `gate`.
"""
