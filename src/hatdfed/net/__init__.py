"""What crosses a network."""
