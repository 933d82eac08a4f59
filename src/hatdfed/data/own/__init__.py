"""A server's own images, from a folder, an .npz file or a Python function of the user."""
