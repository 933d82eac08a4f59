"""Ways to run N servers: the same program in different shells."""
