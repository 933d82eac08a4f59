"""What is kept of a run: a folder that the run writes and everything else reads."""
