"""Settings of runs that take a moment."""

SMALL = {
    "dataset": "synthetic",
    "dataset_options": {"train": 300, "validation": 60, "test": 30},
    "network": "linear",
    "servers": 3,
    "rounds": 3,
    "validation_images": 50,
    "checkpoint_every": 1,
}
