"""The layer of configuration that each data set brings: what a run on it uses unless told otherwise.

Rounds, images and prices belong to the data. The small sets price the model they really send; the two real
ones price the model sizes and the joules per sample that the paper reports for its networks.
"""

from __future__ import annotations

from typing import Any

PAPER_NETWORKS = ("paper-cnn", "paper-cnn-relu")

DIGITS: dict[str, Any] = {
    "rounds": 40,
    "images_per_server": 100,
    "validation_images": 300,
    "network": "small-cnn",
    "samples_per_round": 60,
    "local_passes": 2,
    "energy": {
        "model_bits": "actual",
        "weak_joules_per_sample": 0.5,
        "strong_joules_per_sample": 0.25,
    },
}

SYNTHETIC: dict[str, Any] = {**DIGITS, "energy": dict(DIGITS["energy"])}

FASHION_MNIST: dict[str, Any] = {
    "rounds": 200,
    "images_per_server": 800,
    "validation_images": 1000,
    "network": "paper-cnn",
    "samples_per_round": 60,
    "local_passes": 2,
    "energy": {
        "model_bits": 47_200_000,
        "weak_joules_per_sample": 17.33,
        "strong_joules_per_sample": 8.67,
    },
}

CIFAR_10: dict[str, Any] = {
    **FASHION_MNIST,
    "local_passes": 8,
    "energy": {
        "model_bits": 135_200_000,
        "weak_joules_per_sample": 60.0,
        "strong_joules_per_sample": 30.0,
    },
}
