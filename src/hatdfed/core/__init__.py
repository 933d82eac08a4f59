"""The algorithm on the coordinator's side, and the values that travel in a round. Needs numpy only."""
