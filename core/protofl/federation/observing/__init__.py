"""What a run observes on request: prototypes, test features, generated images, and uploads.

Before a run `wanted` says whether it can be seen and how much it will be. In a round `rounds` shows
the `observer` what has crossed and what the server knows, and hosts send features beside scores;
what is kept goes to ``observed/`` and ``uploads/`` in the run's folder, a file a round. From there
`observed` reads it as arrays, of which `figures` makes what `plots` and `reporting` draw;
`replaying` reads the uploads.
"""
