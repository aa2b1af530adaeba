"""Many runs that are wanted: tried before any is trained, done several at once, told at the end."""
