"""Connections between machines: gRPC endpoints, connection limits, and models as streams of frames."""
