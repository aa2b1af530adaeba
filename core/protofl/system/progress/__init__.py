"""How far a round is: mini-batches that hosts have done, of those that there are to do."""
