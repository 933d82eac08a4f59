"""One run: played, recorded, summed up."""
