"""Connections between edges of which neither can dial the other: both dial out to a relay."""
