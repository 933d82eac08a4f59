"""One edge server: train, offer, merge; and what it is put together from."""
