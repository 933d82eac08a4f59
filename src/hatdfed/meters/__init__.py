"""Energy as machines measure it: one protocol, one file for each kind of meter, one order to try them."""
