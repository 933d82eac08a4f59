"""All servers of many runs as rows of tensors: the fast fleet."""
