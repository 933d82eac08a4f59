"""What the work costs: the energy model, and the efficiency of links."""
