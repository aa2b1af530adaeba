"""Who takes part in a round, and when the round is over in virtual time.

`taking_part` is what `rounds` asks: whom to ask, who is absent, what the line of the record says of
it. It has the clients that there are from `members`, whom the plugin chooses from `selection`, or
those of a recorded run from `replay`, and the time from the `clock`, which knows the devices of a
`world`. All of it starts anew with each trial, and goes on from the record's lines.
"""
