"""The stages of a network as Triton kernels."""
