"""Runs on real machines: the protocol, identities, transport, and the processes of coordinator and edges."""
