"""Traces: their files, and generators of typical ones."""
