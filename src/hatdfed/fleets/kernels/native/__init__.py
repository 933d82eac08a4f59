"""Stages in C for CPUs: compiled on first use for the shapes at hand, several times faster than torch's operations."""
