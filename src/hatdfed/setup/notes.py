"""What a user should know about how settings are interpreted, before a run and in its results."""

from __future__ import annotations

from hatdfed.core.policies import POLICIES
from hatdfed.core.task import CLASSIFICATION, NEXT_TOKEN
from hatdfed.data.datasets import DATASETS, dataset_kind
from hatdfed.setup.config import Config
from hatdfed.setup.layers import Layer, config_budget, considered_links, finish_rounds
from hatdfed.setup.methods import METHODS

_PRICED = ("model_bits", "weak_joules_per_sample", "strong_joules_per_sample")  # what depends on the network


def collect_notes(config: Config) -> list[str]:
    """Collect what a user should know about how the settings are interpreted."""
    found = []
    considered = considered_links(config) or config.servers - 1
    wanted, budget = config.link_share * config.servers * considered, config_budget(config)
    policy = POLICIES.get(config.policy.name)
    if policy is not None and policy.uses_budget and abs(wanted - budget) > 1e-9:
        found.append(f"link_share {config.link_share:g} asks for {wanted:.2f} links a round; {budget} are drawn (D11).")
    if policy is not None and not policy.uses_budget and _is_link_share_chosen(config):
        found.append(f"link_share has no effect: policy {config.policy.name} has its own number of links.")
    if config.candidates is not None and considered_links(config) is None:
        found.append(
            f"candidates {config.candidates} has no effect: there are only {config.servers - 1} other servers."
        )
    if config.label_groups > 1 and config.split != "labels":
        found.append(f"label_groups has no effect: it is for split: labels, and split is {config.split}.")
    if config.samples_per_round > config.images_per_server:
        found.append(
            f"samples_per_round {config.samples_per_round} exceeds the {config.images_per_server} images of a server; "
            "all of them are used."
        )
    if finish_rounds(config) != config.schedule.finish_rounds:
        found.append(
            f"schedule.finish_rounds {config.schedule.finish_rounds} is more than half of the run; the last "
            f"{finish_rounds(config)} rounds have every link."
        )
    if is_always_silent(config):
        length = f"{config.rounds} round{'s' * (config.rounds != 1)}"
        found.append(
            f"schedule.every is {config.schedule.every}, but the run has {length}: no link is ever drawn, and every "
            "server learns alone."
        )
    found += _foreign_prices(config)
    found += _describe_task(config)
    if config.privacy.clip is not None:
        found.append(
            "Servers are trained one by one, because privacy.clip is set; ε covers their training and nothing else "
            "(docs/privacy.md)."
        )
        if not config.privacy.noise:
            found.append("privacy.noise is 0: gradients are clipped, but nothing is protected.")
    if config.has_parameter_server:
        found.append(
            "One server averages the models of all: a centralised reference, not a decentralised method "
            "(docs/methods.md)."
        )
    if config.leaks_test:
        found.append("feedback: test lets the run see the test set. Its figures are not comparable and never ranked.")
    return found


def _describe_task(config: Config) -> list[str]:
    """What settings about class labels come to in a task without them."""
    task = config.task or (DATASETS[config.dataset].task if config.dataset in DATASETS else CLASSIFICATION)
    if task == CLASSIFICATION:
        return []
    found = []
    if config.loss.name != "cross-entropy":
        found.append(
            f"loss {config.loss.name} has no effect: it is about class labels, and samples of {task} have none. They "
            "are trained with the loss of their task."
        )
    if task == NEXT_TOKEN and config.split == "labels":
        found.append(
            "label_concentration has no effect: sequences of tokens have no label by which servers could differ, so "
            "every server owns a random sample. Give groups, and split: groups, for data that differ."
        )
    return found


def is_always_silent(config: Config) -> bool:
    """Whether the schedule leaves no round with links."""
    finish = finish_rounds(config)
    has_finish = finish > 0 and (config.horizon or config.rounds) - finish < config.rounds
    return config.schedule.every > config.rounds and not has_finish


def _foreign_prices(config: Config) -> list[str]:
    """Prices, of the data set or by default, that are not for this network."""
    kind = DATASETS.get(config.dataset) if config.dataset in DATASETS else None
    known = () if kind is None else kind.priced_networks or (kind.defaults.get("network"),)
    if config.network in known:
        return []
    brought = Config().energy.model_dump() if kind is None else kind.defaults.get("energy", {})
    energy, charged = config.energy.model_dump(), {"model_bits"}
    if not config.machines.profiles and config.energy.training_joules is None:
        charged |= {"weak_joules_per_sample", "strong_joules_per_sample"}
    foreign = [f"energy.{key} {brought[key]:g}" for key in _PRICED if key in charged and _is_kept(key, brought, energy)]
    if not foreign:
        return []
    whose = f"Prices of network {' or '.join(map(str, known))}" if known else "Default prices, of no network,"
    cure = "machines.profiles lets training follow the network's FLOPs (docs/energy.md)"
    return [f"{whose} are charged for network {config.network}: {', '.join(foreign)}; {cure}."]


def _is_kept(key: str, brought: Layer, energy: Layer) -> bool:
    return key in brought and energy[key] == brought[key] != "actual"


def _is_link_share_chosen(config: Config) -> bool:
    """Whether the user set `link_share`, as far as can be told: it differs from what method and data set give."""
    if config.method not in METHODS:
        return False
    usual = Config.model_fields["link_share"].default
    for part in (dataset_kind(config.dataset, config.dataset_options).defaults, METHODS[config.method].settings):
        usual = part.get("link_share", usual)
    return bool(config.link_share != usual)
