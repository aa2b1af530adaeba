"""What a run observes on request: prototypes, test features, generated images, and uploads."""
