"""A transformer of your own on token ids: servers learn to continue Python's own documentation, letter by letter.

Integers [n, L] without targets are token ids, and the task is to predict the next one (docs/data.md). Run it with
`python examples/own_transformer.py`.
"""

import argparse
from pydoc_data.topics import topics

import numpy as np
import torch
from torch import nn

import hatdfed
from hatdfed.server.networks import NETWORKS


class SmallTransformer(nn.Module):
    """Made, like every network, from the shape of a sample and the number of outputs: here, of letters."""

    def __init__(self, shape, num_letters, width=32):
        super().__init__()
        self.letters, self.places = nn.Embedding(num_letters, width), nn.Embedding(shape[0], width)
        self.block = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(width, num_letters)

    def forward(self, x):
        """Token ids [n, L] -> logits [n, L, letters]; no position sees a later one."""
        is_future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        return self.head(self.block(self.letters(x) + self.places.weight, src_mask=is_future))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Next-letter prediction with a transformer.")
    parser.add_argument("--rounds", type=int, default=20)
    letters = np.unique(list(topics["specialnames"][: 33 * 600]), return_inverse=True)[1].reshape(-1, 33)
    NETWORKS.add("small-transformer", SmallTransformer)
    settings = {"dataset": letters, "network": "small-transformer", "learner": {"learning_rate": 0.01}}
    summary = hatdfed.run(rounds=parser.parse_args().rounds, common_init=True, **settings).summary
    print(f"{summary['avg_accuracy']:.1f} % of letters right, perplexity {summary['metrics']['perplexity']:.1f}")
