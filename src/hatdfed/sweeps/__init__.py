"""Sweeps: many runs from one file, played wherever there is room, kept one folder each, summed up in one table."""
