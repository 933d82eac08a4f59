"""Hat-DFed in one file: the whole algorithm in plain loops, to be read from top to bottom.

Some edge servers train models on what their own devices bring. Nobody collects the models: every round a coordinator
draws a few links between servers, and a model travels along each of them. From the accuracies and joules that servers
report, the coordinator learns which links are worth drawing. A link is a pair (receiver, sender).

    python examples/hat_dfed_in_one_file.py

Equations and algorithms are numbered as in the paper, arXiv 2508.08278; where it can be read in several ways, this file
does what the method `hat-dfed` does. It uses nothing of hatdfed: `tests/parity/test_one_file.py` gives both the same
data and the same links, and demands the same models.
"""

import argparse
import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

ALPHA = 0.6  # α: weight of accuracy in a link's utility, the rest is for energy
BETA = 0.4  # β: weight of quality in a merge, the rest is for the amount of data
GAMMA = 0.3  # γ: share of all links that is drawn in a round


class Work(NamedTuple):
    """What a server's devices brought in one round."""

    batches: list  # of (images, labels)
    num_samples: int
    devices_online: int
    probe: tuple  # a few of the images and their labels, to judge models on


class Prices(NamedTuple):
    """What things cost, in joules."""

    upload: float  # ψ of a device that connects, Eq. (4)
    sample: list  # τ of each server: to train on one sample, Eq. (5)
    link: dict  # σ of each link: to send a model along it, Eq. (6)


def run(models, optimisers, prices, rounds, works, draw, validation):
    """Algorithm 1. Chance is an argument: `works(t)` brings the data of round t, `draw(t, probability)` its links."""
    budget = max(1, round(GAMMA * len(prices.link)))
    rate = math.sqrt(rounds * math.log(len(models))) / (len(models) * rounds)  # η of Theorem 2
    log_weights = dict.fromkeys(prices.link, 0.0)  # every weight is 1
    before = [accuracy(model, *validation) for model in models]
    for t in range(rounds):
        probability = cap(log_weights, budget)  # phase I: which links?
        drawn = draw(t, probability)
        work = works(t)
        update_models(models, optimisers, work, drawn)  # phase II: train, exchange, merge
        after = [accuracy(model, *validation) for model in models]
        gain = [new - old for new, old in zip(after, before, strict=True)]
        spent = [prices.upload * own.devices_online + prices.sample[i] * own.num_samples for i, own in enumerate(work)]
        worth = utility(gain, spent, prices.link)  # what was each link worth?
        log_weights = update_weights(log_weights, estimate(worth, drawn, probability), rate)
        joules = sum(spent) + sum(prices.link[link] for link in drawn)  # Eq. (7)
        yield after, joules, probability, worth, log_weights
        before = after


# Phase I, the coordinator: draw links, and learn what they are worth (Algorithms 2 and 4).


def cap(log_weights, budget):
    """The probability of each link, Eq. (17): in proportion to its weight, at most 1, and `budget` in all.

    What exceeds 1 goes to the links below 1, again and again until nothing does.
    """
    sure = set()
    while True:
        top = max((weight for link, weight in log_weights.items() if link not in sure), default=0.0)
        weights = {link: math.exp(weight - top) for link, weight in log_weights.items() if link not in sure}
        scale = (budget - len(sure)) / sum(weights.values()) if weights else 0.0
        too_large = {link for link in weights if scale * weights[link] > 1}
        if not too_large:
            return {link: 1.0 if link in sure else scale * weights[link] for link in log_weights}
        sure |= too_large


def round_links(probability, uniform):
    """Draw each link with its probability, and always equally many, Eq. (18): settle two open links at a time.

    Of two links one rises and the other falls by as much, until one of them is at 0 or 1. Which one rises is drawn so
    that nothing changes on average. In the paper's letters, θ = high − p_a and δ = p_a − low.
    """
    p = dict(probability)
    still_open = []
    for link in p:
        still_open = [x for x in (*still_open, link) if 0 < p[x] < 1]
        if len(still_open) == 2:
            a, b = still_open
            high, low = min(p[a] + p[b], 1.0), max(p[a] + p[b] - 1, 0.0)
            p[a], p[b] = (high, low) if uniform() * (high - low) < p[a] - low else (low, high)
    return {link for link in p if p[link] > 0.5}


def utility(gain, spent, link_joules, alpha=ALPHA):
    """What each link was worth, drawn or not, Eq. (9): the receiver's gain against what sender and link cost."""
    performance = normalise({(i, j): gain[i] for i, j in link_joules})  # Eq. (11)
    cost = normalise({(i, j): spent[j] + link_joules[i, j] for i, j in link_joules})  # Eq. (10)
    return {link: alpha * performance[link] + (1 - alpha) * (1 - cost[link]) for link in link_joules}


def normalise(values):
    """0 for the smallest, 1 for the largest; ½ for all if they are equal."""
    low, high = min(values.values()), max(values.values())
    return {link: (value - low) / (high - low) if high > low else 0.5 for link, value in values.items()}


def estimate(worth, drawn, probability):
    """Utilities that are right on average although only the drawn links are looked at, Eq. (15)."""
    return {link: 1 - (1 - u) / probability[link] if link in drawn else 1.0 for link, u in worth.items()}


def update_weights(log_weights, estimated, rate):
    """w ← w·exp(η·û), Eq. (16), in logarithms; only differences matter, so the largest is kept at 0."""
    moved = {link: weight + rate * estimated[link] for link, weight in log_weights.items()}
    return {link: weight - max(moved.values()) for link, weight in moved.items()}


# Phase II, the servers: train, exchange models, merge them (Algorithm 3).


def update_models(models, optimisers, works, drawn):
    """All servers train. Then each merges its own model with those that it received, all at the same moment."""
    for model, optimiser, work in zip(models, optimisers, works, strict=True):
        train(model, optimiser, work.batches)
    merged = []
    for i, work in enumerate(works):
        held = [i] + [j for j in range(len(models)) if (i, j) in drawn]
        images, labels = work.probe
        losses = [F.cross_entropy(answer(models[j], images), labels, reduction="none") for j in held]
        weights = importance(torch.stack(losses), torch.tensor([works[j].num_samples for j in held]))
        merged.append(merge([models[j] for j in held], weights))
    for model, state in zip(models, merged, strict=True):
        model.load_state_dict(state)


def train(model, optimiser, batches):
    """One step for each batch, Eq. (2)."""
    model.train()
    for images, labels in batches:
        optimiser.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimiser.step()


def importance(losses, counts, beta=BETA):  # [models, samples], [models] -> [models]
    """The weight of each model, Eq. (20): for small losses on the probe, and for much data to train on."""
    quality = torch.softmax(-losses.square().mean(dim=1).sqrt(), dim=0)  # Eq. (19), for one sample
    volume = counts.double() / counts.sum() if counts.any() else torch.full_like(quality, 1 / len(counts))
    return beta * quality + (1 - beta) * volume


def merge(models, weights):
    """The weighted mean of everything in the models, Eq. (21); whole numbers, as batch norm's counter, stay at home."""
    states = [model.state_dict() for model in models]
    merged = dict(states[0])
    for name, tensor in merged.items():
        if tensor.is_floating_point():
            merged[name] = sum(weight * state[name] for weight, state in zip(weights, states, strict=True))
    return merged


@torch.no_grad()
def answer(model, images):
    """What a model says about images."""
    return model.eval()(images)


def accuracy(model, images, labels):
    """Share of right answers."""
    return (answer(model, images).argmax(dim=1) == labels).double().mean().item()


# A world to try it in: scikit-learn's digits; each server owns 100 images in a mixture of its own, and has 30 devices.


def small_cnn():
    """A network for images of 8 × 8, with Xavier's initial weights."""
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)),
    )
    for weight in model.parameters():
        if weight.dim() > 1:
            nn.init.xavier_uniform_(weight)
    return model


def skewed_shard(labels, rng):
    """100 images in a random mixture of labels, r ~ Dir(0.3)."""
    share = rng.dirichlet(np.full(10, 0.3))[labels]
    return rng.choice(len(labels), 100, replace=False, p=share / share.sum())


def collect(images, labels, shard, rng):
    """A server's round: 30 devices hold two images each, about half of them connect; two passes over what they send."""
    samples, online = rng.permutation(shard)[:60], rng.random(30) < 0.5
    sent = samples[np.repeat(online, 2)]
    orders = [rng.permutation(sent), rng.permutation(sent)] if online.any() else []
    probe = sent[:16] if online.any() else samples[:16]
    batches = [(images[order], labels[order]) for order in orders]
    return Work(batches, len(sent), int(online.sum()), (images[probe], labels[probe]))


def main(rounds, seed, num_servers=5):
    """Play a run and tell how it goes."""
    from sklearn.datasets import load_digits

    torch.set_num_threads(1)  # faster for a network as small as this
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    ink, labels = (torch.tensor(array) for array in load_digits(return_X_y=True))
    images = ((ink - ink.mean()) / ink.std()).float().view(-1, 1, 8, 8)
    test, validation, pool = torch.from_numpy(rng.permutation(len(labels))).split([400, 300, 1097])
    shards = [pool.numpy()[skewed_shard(labels[pool].numpy(), rng)] for _ in range(num_servers)]
    models = [small_cnn() for _ in range(num_servers)]
    optimisers = [torch.optim.Adam(model.parameters(), lr=1e-3) for model in models]
    links = [(i, j) for i in range(num_servers) for j in range(num_servers) if i != j]
    model_bits = 32 * sum(tensor.numel() for tensor in models[0].state_dict().values() if tensor.is_floating_point())
    prices = Prices(
        upload=2 * 64 * 8 / 1000,  # two images at 1 kbit/J
        sample=rng.choice([0.5, 0.25], num_servers).tolist(),  # a weak or a strong machine
        link={link: model_bits / rng.uniform(20_000, 50_000) for link in links},
    )

    def works(t):
        return [collect(images, labels, shard, rng) for shard in shards]

    def draw(t, probability):
        return round_links({links[k]: probability[links[k]] for k in rng.permutation(len(links))}, rng.random)

    spent = 0.0
    played = run(models, optimisers, prices, rounds, works, draw, (images[validation], labels[validation]))
    for t, (accuracies, joules, *_) in enumerate(played, start=1):
        spent += joules
        if t % 5 == 0 or t == rounds:
            print(f"round {t:3}   validation accuracy {np.mean(accuracies):6.1%}   spent {spent:6.0f} J")
    print(f"test accuracy {np.mean([accuracy(model, images[test], labels[test]) for model in models]):.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Hat-DFed on scikit-learn's digits, without the library.")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    main(arguments.rounds, arguments.seed)
