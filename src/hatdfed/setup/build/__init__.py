"""Where names become objects, and nowhere else."""
