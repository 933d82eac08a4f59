"""Metrics for Prometheus: what coordinator, edges and relay export, and the small server that all use for it."""
