"""Seconds: how fast machines and links are, how long a round takes, and who is late."""
