"""Settings of a run as one frozen value, from YAML or keywords.

Layers, later ones win: the defaults below, what the data set brings, what the method's recipe says, what the user says.
The result is complete: a run folder's `config.yaml` needs no layer to be understood.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Efficiency = Annotated[float, Field(ge=1e-6, le=1e9, allow_inf_nan=False)]  # kbit/J
Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """Frozen; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), use_attribute_docstrings=True)


class Component(BaseModel):
    """A plug point by name; the other keys are its settings, checked when it is built."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str

    @property
    def settings(self) -> dict[str, Any]:
        """Everything but the name."""
        return dict(self.model_extra or {})


class UtilityConfig(Section):
    """How a link's worth is computed, Eqs. (9)–(11)."""

    normalisation: str = "minmax"
    """D7: minmax, softmax (as printed) or softmax-standardised."""
    gain: str = "receiver"
    """D8: receiver (as printed) or released."""
    thrift: str = "joules"
    """D8: joules (as printed) or released."""


class LearnerConfig(Section):
    """How a server moves its model."""

    optimiser: Literal["adam", "sgd"] = "adam"
    learning_rate: Positive = 1e-3
    """μ."""
    momentum: Share = 0.0
    """For sgd."""
    cool_down: Share = 0.0
    """Share of the run, at its end, in which steps become shorter, in a straight line down to almost nothing."""
    initialisation: Literal["xavier", "module"] = "xavier"
    """xavier (as printed) or the module's own."""


class EnergyConfig(Section):
    """The paper's price list; energies in joules."""

    model_bits: Positive | Literal["actual"] = "actual"
    """What a model weighs on a link: the paper's figure, with its networks, or 32 bits for each number that travels."""
    weak_joules_per_sample: Positive = 0.5
    """τ of machines of type A (D6)."""
    strong_joules_per_sample: Positive = 0.25
    """τ of machines of type B (D6)."""
    device_kbit_per_joule: Efficiency = 1.0
    """EE^d."""
    link_kbit_per_joule: tuple[Efficiency, Efficiency] = (20.0, 50.0)
    """Range of EE^{ij}, drawn once for each directed link."""


class ScheduleConfig(Section):
    """When links are spent, whatever policy draws them."""

    every: Count = 1
    """Links in every m-th round only; servers train in all of them."""
    finish_rounds: Annotated[int, Field(ge=0)] = 0
    """Rounds at the end with every link, so that the servers agree; at most half of the run."""
    budget_joules: Positive | None = None
    """A hard limit on the joules of all links in a run, at known prices."""


class Config(Section):
    """Everything that decides a run."""

    method: str = "hat-dfed"
    """The recipe whose settings come before yours."""
    dataset: str = "digits"
    """digits, synthetic, fashion-mnist or cifar-10."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Fixes the world: data, devices, prices, initial models. Methods with one seed meet the same world."""
    servers: Annotated[int, Field(ge=2)] = 5
    """N."""
    rounds: Count = 200
    """K."""
    horizon: Count | None = None
    """Rounds that the bandit's learning rate is set for, if not `rounds`: kept when a run is extended."""

    link_share: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.3
    """γ: share of all links that is drawn in a round."""
    candidates: Count | None = None
    """d: how many others every server considers; all of them, if left out. For fleets of thousands: a round then costs
    the coordinator N·d instead of N², and γ is the share of those links."""
    refresh_every: Count = 10
    """Rounds after which every server exchanges some of its candidates for others."""
    gain_share: Share = 0.6
    """α: weight of accuracy against energy in a link's utility."""
    quality_share: Share = 0.4
    """β: weight of a model's quality against its data volume in a merge."""

    label_concentration: Positive = 0.3
    """λ: the smaller, the more the servers' labels differ."""
    device_online_probability: Share = 0.5
    """ρ: chance of a device to connect in a round."""
    churn: Share = 0.0
    """Chance of a server to be away for a stretch of ten rounds: it neither trains nor speaks nor hears."""
    devices: Count = 30
    """Devices under each server."""
    images_per_server: Count = 800
    samples_per_round: Count = 60
    """What the devices of a server hold together in a round, online or not."""
    split: Literal["labels", "groups"] = "labels"
    """How images are shared out: label skew by λ (the paper), or by the person or place they come from."""
    label_groups: Count = 1
    """Groups of servers that share no label: servers and labels are dealt out to them in turn."""
    disjoint: bool = False
    """Whether no two servers may own the same image (D1)."""
    validation_images: Count = 1000
    """Size of the sample that accuracies are measured on during a run (D3)."""
    feedback: Literal["validation", "test"] = "validation"
    """What the bandit learns from. `test` reproduces a leak and marks the run (D3)."""
    first_gain_from: Literal["initial-models", "zero"] = "initial-models"
    """P_0: measured, or zero as released (D8, D13)."""
    common_init: bool = False
    """Whether all servers start from the same model."""

    network: str = "small-cnn"
    local_passes: Count = 2
    """Passes over a round's data (D4)."""
    batch_size: Count = 64
    probe_size: Count = 16
    """B: own images that received models are judged on (D15)."""
    probe_top_up: bool = False
    """Whether a probe is filled with images that no device sent (D8)."""
    codec: str = "float32"
    """How a model looks on a link: float32, float16, int8, int4 (both with error feedback), top-k (what changed)."""

    policy: Component = Component(name="link-bandit")
    utility: UtilityConfig = UtilityConfig()
    aggregator: Component = Component(name="importance")
    loss: Component = Component(name="cross-entropy")
    schedule: ScheduleConfig = ScheduleConfig()
    learner: LearnerConfig = LearnerConfig()
    energy: EnergyConfig = EnergyConfig()
    dataset_options: dict[str, Any] = {}
    """Passed to the data set's loader."""
    checkpoint_every: Annotated[int, Field(ge=0)] = 10
    """Rounds between checkpoints in the run folder; 0 for none."""

    @property
    def leaks_test(self) -> bool:
        """Whether anything in this run sees the test set before its end."""
        return self.feedback == "test"
