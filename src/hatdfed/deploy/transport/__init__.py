"""Connections between machines: endpoints, their limits, frames of a transfer."""
