"""What travels between coordinator and edges: `hatdfed.proto`, and the code made from it (`make protocol`)."""
