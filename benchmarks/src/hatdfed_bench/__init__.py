"""How fast this machine runs a fleet, and against what that should be held: `hatdfed bench`."""
