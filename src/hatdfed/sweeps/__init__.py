"""Sweeps: many runs from one file, executed where there is capacity, kept one folder each, summed up in one table."""
