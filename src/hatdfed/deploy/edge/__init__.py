"""An edge server on a real machine: the same `EdgeProgram` as everywhere, its neighbours reached over the network."""
