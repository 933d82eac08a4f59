"""An edge on a real machine: the same `EdgeProgram` as in a simulation, neighbours are reached over the network."""
