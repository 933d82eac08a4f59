"""The two actors of a run, refused with a sentence where they cannot work together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from hatdfed.core.coordinator import Coordinator
from hatdfed.core.policies import POLICIES
from hatdfed.core.policies.base import AnyPolicy
from hatdfed.core.round import Presence
from hatdfed.core.task import NEXT_TOKEN
from hatdfed.data.datasets.base import Dataset
from hatdfed.data.standardise import make_tensors
from hatdfed.errors import OWN_THING, ConfigError, naming_failures, require_one_of
from hatdfed.randomness import torch_seed
from hatdfed.server.aggregation import AGGREGATORS
from hatdfed.server.codecs import CODECS, codec_for
from hatdfed.server.codecs.base import message_share
from hatdfed.server.flops import ForwardFlops, count_forward_flops
from hatdfed.server.learner import Learner
from hatdfed.server.losses import LOSSES, check_loss
from hatdfed.server.measured_metrics import MetricSet
from hatdfed.server.merge_laws import check_rule
from hatdfed.server.networks import NETWORKS, PRIVATE_NETWORK, find_network
from hatdfed.server.optimisers import OPTIMISERS, Optimiser, make_torch_optimiser
from hatdfed.server.parameter_roles import RolePatterns
from hatdfed.server.private_steps import NoiseSource, PrivateSteps, refuse_mixing_layers, repeatable_noise
from hatdfed.server.program import EdgeProgram, StepSchedule
from hatdfed.server.tasks import make_task
from hatdfed.setup.build.coordinator import build_component, make_coordinator, make_prices
from hatdfed.setup.build.machines import make_machines
from hatdfed.setup.build.pace import make_pace
from hatdfed.setup.config import Config, LearnerConfig, PrivacyConfig


def make_actors(config: Config, dataset: Dataset) -> tuple[Coordinator, EdgeProgram]:
    """Coordinator and server, refused with a sentence if they cannot work together or with so many servers."""
    program = make_program(config, dataset)
    _refuse_missing_plan(config, program)
    num_params, flops = program.learner.num_params, find_forward_flops(config, dataset, program.learner)
    count = None if flops is None else flops.operations
    prices = make_prices(config, bits_per_sample=dataset.bits_per_sample, num_params=num_params, forward_flops=count)
    machines = make_machines(config, config.servers, count)
    share = message_share(program.codec, num_params)
    coordinator = make_coordinator(config, prices, machines=machines, message_share=share)
    _refuse_impossible_draw(coordinator, config.servers)
    return dataclasses.replace(coordinator, pace=make_pace(config, coordinator)), program


def _refuse_impossible_draw(coordinator: Coordinator, servers: int) -> None:
    """A policy that cannot draw for N servers says so now, whoever is there in the first round."""
    start = coordinator.start(np.zeros(servers))
    reachable = np.ones(len(coordinator.context(start).links), dtype=bool)
    coordinator.plan(start, Presence(np.ones(servers, dtype=bool), reachable))


def make_program(config: Config, dataset: Dataset, noise: NoiseSource = repeatable_noise) -> EdgeProgram:
    """One server's program; `noise` is where the noise of private training comes from."""
    require_one_of("codec", config.codec, CODECS, OWN_THING)
    learner = make_learner(config, dataset, noise)
    aggregator = build_component(
        "aggregator",
        config.aggregator,
        AGGREGATORS,
        quality_share=config.quality_share,
        guess_loss=learner.task.guess_loss,
    )
    if config.aggregator.name not in AGGREGATORS.built_in:
        check_rule(aggregator)
    loss = build_component("loss", config.loss, LOSSES)
    if config.loss.name not in LOSSES.built_in and dataset.task.has_classes:
        check_loss(config.loss.name, loss, dataset.task.num_outputs)
    return EdgeProgram(
        learner=learner,
        aggregator=aggregator,
        codec=codec_for(config.codec, learner.sent_sizes),
        scores=_policy_class(config).needs_scores,
        loss=loss,
        pace=StepSchedule(config.horizon or config.rounds, config.learner.cool_down),
        metrics=MetricSet(config.metrics, learner.task),
    )


def _policy_class(config: Config) -> type[AnyPolicy]:
    require_one_of("policy.name", config.policy.name, POLICIES, OWN_THING)
    return POLICIES[config.policy.name]


def _refuse_missing_plan(config: Config, program: EdgeProgram) -> None:
    if program.aggregator.needs_plan and not _policy_class(config).plans_mixing:
        able = ", ".join(name for name, policy in POLICIES.built_in.items() if policy.plans_mixing)
        raise ConfigError(
            f"aggregator {config.aggregator.name!r} merges by the weights of a plan, but policy "
            f"{config.policy.name!r} makes none. Use one of {able}, or another aggregator."
        )


def initial_seed(config: Config, server: int) -> int:
    """The seed from which a server draws its first model: its own, or that of all servers."""
    return torch_seed(config.seed, "initial-model", 0 if config.common_init else server)


def make_learner(config: Config, dataset: Dataset, noise: NoiseSource = repeatable_noise) -> Learner:
    """What trains and measures one server's models."""
    _refuse_tokens(config, dataset)
    maker = _find_maker(config, dataset)
    settings = config.learner
    private = make_private_steps(config.privacy, noise)
    learner = Learner(
        maker,
        make_optimiser(settings),
        task=make_task(dataset.task),
        xavier=settings.initialisation == "xavier",
        private=private,
        roles=RolePatterns(**config.parameters.model_dump()),
    )
    if private is not None:
        refuse_mixing_layers(learner.module, config.network, PRIVATE_NETWORK)
    _refuse_other_precision(config, learner)
    _refuse_unfit_network(config, dataset, learner.module)
    return learner


def _find_maker(config: Config, dataset: Dataset) -> Callable[[], nn.Module]:
    """What makes the network; one of a user's own is tried once, so that it is named if it cannot be made."""
    maker = partial(find_network(config.network), dataset.sample_shape, dataset.task.num_outputs)
    if config.network in NETWORKS.built_in:
        return maker
    with naming_failures(f"network {config.network!r}, made for samples of shape {list(dataset.sample_shape)},"):
        module: object = maker()
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"network {config.network!r} made {type(module).__name__}, but must make an nn.Module: register its class, "
            "or a function of a sample's shape and the number of outputs that returns one."
        )
    if lazy := [name for name, each in module.named_parameters() if isinstance(each, UninitializedParameter)]:
        raise ConfigError(
            f"network {config.network!r} has parameters without a shape, such as {lazy[0]}. Make its layers from the "
            "shape of a sample, which it is given, in place of lazy ones."
        )
    return maker


def _refuse_tokens(config: Config, dataset: Dataset) -> None:
    """A table of integers reads as token ids, which no built-in network classifies."""
    x = dataset.validation.x
    is_tokens = x.dtype.kind in "iu" and x.ndim == 2
    if is_tokens and dataset.task.name != NEXT_TOKEN and config.network in NETWORKS.built_in:
        raise ConfigError(
            f"x has integers of shape [n, {x.shape[1]}], which are taken as token ids, but no built-in network is for "
            f"{dataset.task.name} of token ids. Convert a table of numbers, as with x.astype('float32'), or name a "
            "network of your own."
        )


def make_optimiser(settings: LearnerConfig) -> Optimiser:
    """Adam or SGD as kernels compute them, or with further settings or any other name the one of torch."""
    if settings.optimiser not in OPTIMISERS or settings.optimiser_settings:
        return make_torch_optimiser(
            settings.optimiser, settings.learning_rate, settings.momentum, settings.optimiser_settings
        )
    optimiser = OPTIMISERS[settings.optimiser]
    known = {field.name for field in dataclasses.fields(optimiser)}
    return optimiser(**{name: value for name, value in settings.model_dump().items() if name in known})


def _refuse_other_precision(config: Config, learner: Learner) -> None:
    """What is trained or sent is one vector of float32; only frozen tensors keep a type of their own."""
    module = learner.module
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if learner.roles.get(name, "frozen") != "frozen" and tensor.dtype != torch.float32:
            raise ConfigError(
                f"network {config.network!r} has {name} of type {str(tensor.dtype).removeprefix('torch.')}, but what "
                "is trained or sent must be float32. Leave out .double(), .half() or dtype=… where the network is made."
            )


@torch.no_grad()
def _refuse_unfit_network(config: Config, dataset: Dataset, module: nn.Module) -> None:
    """Show the network a sample: whether it takes such samples and gives out what the task needs."""
    sample = dataset.validation.take(slice(0, 1))
    batch = make_tensors(sample, dataset.format)
    samples = f"samples of shape {list(dataset.sample_shape)} ({batch.x.dtype})"
    try:
        with torch.enable_grad():
            outputs = module(batch.x)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 (it is somebody else's module)
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"network {config.network!r} cannot take {samples}: {reason:.200}. Choose or write another network."
        ) from None
    if not isinstance(outputs, torch.Tensor):
        raise ConfigError(
            f"network {config.network!r} gives out {type(outputs).__name__} for {samples}, but must give out a tensor. "
            "Correct its forward."
        )
    if not outputs.requires_grad:
        raise ConfigError(
            f"network {config.network!r} cannot be trained: what it gives out does not depend on its parameters, as "
            "after .detach() or under torch.no_grad(). Correct its forward."
        )
    found = tuple(outputs.shape)
    positions = batch.y.shape[1:] if dataset.task.name == NEXT_TOKEN else ()
    if found != (wanted := (1, *positions, dataset.task.num_outputs)):
        raise ConfigError(
            f"network {config.network!r} gives out {list(found)} for {samples}, but task {dataset.task.name} needs "
            f"{list(wanted)}. Choose or write another network."
        )


def find_forward_flops(config: Config, dataset: Dataset, learner: Learner) -> ForwardFlops | None:
    """The work that a sample is for the network; None where machines have no profile, so that nobody asks."""
    if not config.machines.profiles:
        return None
    sample = make_tensors(dataset.validation.take(slice(0, 1)), dataset.format)
    return count_forward_flops(learner.module, sample.x)


def describe_flops(config: Config, flops: ForwardFlops | None) -> list[str]:
    """A sentence for a network whose operations could not be counted."""
    if flops is None or flops.is_counted:
        return []
    return [
        f"The FLOPs of network {config.network} cannot be counted, so its training is priced and timed at "
        f"{flops.operations:,.0f} FLOPs a sample, two for each parameter."
    ]


def make_private_steps(settings: PrivacyConfig, noise: NoiseSource) -> PrivateSteps | None:
    """How gradients are made private; None where they are not."""
    return None if settings.clip is None else PrivateSteps(settings.clip, settings.noise, noise)
