"""One edge server (train, offer, merge) and its components."""
