"""A server's own images: how they are read, kept and made into a round's work."""
