"""Data sets, how they are split over servers and devices, and a server's own data."""
