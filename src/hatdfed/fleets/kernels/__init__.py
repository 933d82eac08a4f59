"""Many models of one architecture at once: parameters, data and gradients with a leading axis of servers."""
