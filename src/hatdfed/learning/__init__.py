"""Learning: data sets, networks and local training."""
