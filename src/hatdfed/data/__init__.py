"""Data sets, how they are shared out to servers and devices, and data of one's own."""
