"""All settings of a run as one frozen value, from YAML or keyword arguments.

Settings are resolved from layers, of which later ones win: the defaults below, the defaults of the data set, the
settings of the method, the user's settings. The result is complete: a run folder's `config.yaml` needs no other layer.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from hatdfed.core.effort import MOST_PASSES
from hatdfed.setup.machine_profiles import MachineProfile

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Efficiency = Annotated[float, Field(ge=1e-6, le=1e9, allow_inf_nan=False)]  # kbit/J
Bits = Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]  # such prices add up without overflow
Joules = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=1e-9, le=1e9, allow_inf_nan=False)]  # Mbit/s
Count = Annotated[int, Field(ge=1, le=10**9)]
Amount = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]  # of joules or watts
PerServer = Amount | Annotated[tuple[Amount, ...], Field(min_length=1)]


class Section(BaseModel):
    """A group of settings: frozen, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Component(BaseModel):
    """A component chosen by name; the other keys are its settings, checked when it is built."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str

    @property
    def settings(self) -> dict[str, Any]:
        """All keys but the name."""
        return dict(self.model_extra or {})


class UtilityConfig(Section):
    """How a link's utility is computed, Eqs. (9)–(11)."""

    normalisation: str = "minmax"
    """Normalisation of gains and costs (D7): minmax, softmax (as printed) or softmax-standardised."""
    gain: str = "receiver"
    """Accuracy term (D8): receiver (as printed) or released."""
    thrift: str = "joules"
    """Energy term (D8): joules (as printed) or released."""


def _lower(name: Any) -> Any:
    return name.lower() if isinstance(name, str) else name


OptimiserName = Annotated[
    Literal[
        "adam", "sgd", "adamw", "adadelta", "adagrad", "adamax", "asgd", "nadam", "radam", "rmsprop", "rprop"
    ],
    BeforeValidator(_lower),
]  # fmt: skip


class LearnerConfig(Section):
    """How a server trains its model."""

    optimiser: OptimiserName = "adam"
    """Optimiser: one of torch.optim that treats every parameter by itself, in any case (docs/training.md)."""
    optimiser_settings: dict[str, Any] = {}
    """Further arguments of that optimiser in torch.optim, such as {weight_decay: 0.01} or {nesterov: true}."""
    learning_rate: Annotated[float, Field(gt=0, le=1e30, allow_inf_nan=False)] = 1e-3
    """μ: learning rate of the optimiser."""
    momentum: Share = 0.0
    """Momentum of sgd and rmsprop."""
    cool_down: Share = 0.0
    """Share of the run, at its end, over which the learning rate decays linearly to almost zero."""
    initialisation: Literal["xavier", "module"] = "xavier"
    """Initial weights: xavier (as printed), or the module's own initialisation."""


class ParametersConfig(Section):
    """What travels, as described in docs/parameters.md: shell-style patterns for names of the network's tensors."""

    shared: tuple[str, ...] = ()
    """Tensors that are trained, sent and merged, where the network itself declares something else."""
    personal: tuple[str, ...] = ()
    """Tensors that are trained and stay at their server, such as ["head.*"]."""
    frozen: tuple[str, ...] = ()
    """Tensors that are neither trained nor sent, the same on all servers, such as ["backbone.*"]."""


class EnergyConfig(Section):
    """The paper's energy prices, in joules."""

    source: Literal["modelled", "calibrated", "measured"] = "modelled"
    """Training energy that counts: modelled by prices, calibrated by profiles that `hatdfed calibrate` has measured, or
    measured in every round by the edges of a deployment (docs/measuring.md)."""
    model_bits: Bits | Literal["actual"] = "actual"
    """Bits of a model on a link: the paper's figure (with its networks), or `actual`, 32 bits for each number sent."""
    weak_joules_per_sample: Joules = 0.5
    """τ: training energy on machines of type A, for a sample or for a sample and pass (D6)."""
    strong_joules_per_sample: Joules = 0.25
    """τ: training energy on machines of type B, likewise (D6)."""
    training_per: Literal["sample", "pass"] = "sample"
    """What τ is charged for: a sample, however many passes are made over it (the paper), or a sample and pass (D6)."""
    device_kbit_per_joule: Efficiency = 1.0
    """EE^d: energy efficiency of a device's upload."""
    link_kbit_per_joule: tuple[Efficiency, Efficiency] = (20.0, 50.0)
    """Range of EE^{ij}, the energy efficiency of a link, drawn once for each directed link."""
    link_joules: Annotated[tuple[tuple[Amount, ...], ...], Field(min_length=1)] | None = None
    """Energy to send a whole float32 model along each link, in place of `link_kbit_per_joule`: N rows of N numbers, the
    row receives, or a .csv or .npy file with them (docs/energy.md)."""
    training_joules: Annotated[tuple[Amount, ...], Field(min_length=1)] | None = None
    """τ of each server, in place of weak and strong machines: N numbers, or a .csv or .npy file with them."""
    overhead_bits: Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)] = 0.0
    """Bits of a message on a link besides its model: headers, acknowledgements, encryption."""
    probe_joules: Amount = 0.0
    """Energy to evaluate one model on a server's probe, its own and every received one."""
    merge_joules: Amount = 0.0
    """Energy to merge one received model."""
    idle_watts: PerServer = 0.0
    """Power of a server that takes part in a round, besides everything else and for as long as the round lasts
    (`supply.round_seconds`): one number, or one for each server."""


class SupplyConfig(Section):
    """Where the energy of simulated servers comes from, and when they are there, as described in docs/energy.md."""

    round_seconds: Seconds | Literal["simulated"] = 60.0
    """How long a round lasts, for batteries, idle power and traces: the same number of seconds for all rounds, or
    `simulated`, as long as its machines take (docs/time.md)."""
    battery_joules: Amount | Annotated[tuple[Amount | None, ...], Field(min_length=1)] | None = None
    """Capacity of a server's battery: one number, or one for each server, null for those on mains. A server whose
    charge does not cover the most that a round can cost it is away in that round."""
    first_charge: Share = 1.0
    """Charge before the first round, as a share of the capacity."""
    reserve_joules: PerServer = 0.0
    """Charge that a round must leave: one number, or one for each server."""
    harvest_watts: PerServer = 0.0
    """Power that charges a battery at all times: one number, or one for each server."""
    harvest_trace: str | None = None
    """File with the power that charges a battery over time, in watts, in place of `harvest_watts` (docs/traces.md)."""
    availability_trace: str | None = None
    """File that says when servers are there: a server is away in rounds at whose beginning its value is 0."""
    carbon_trace: str | None = None
    """File with the emissions of the grid over time, in grams of CO2 equivalents for a kWh."""
    tariff_trace: str | None = None
    """File with the price of a kWh of the grid over time, in any currency."""


class UploadsConfig(Section):
    """What servers keep of the data that devices send them, as described in docs/training.md."""

    keep: Literal["none", "samples"] = "none"
    """none: every round uploads anew (the paper); samples: a server keeps what it was sent, and devices send only what
    it does not hold."""
    memory_samples: Count | None = None
    """Number of samples that a server keeps at most, the oldest dropped first; null: all."""
    train_samples: Count | None = None
    """Number of samples that a server trains on in a round: those of the round, then others that it holds, at random;
    null: those of the round, however many devices connected. At most `samples_per_round`."""


class MachinesConfig(Section):
    """Which machines the servers are, as described in docs/time.md."""

    profiles: tuple[str | MachineProfile, ...] = ()
    """Machines of the servers: names in `hatdfed profiles`, or YAML files with profiles of your own. Without any,
    servers are the weak and strong machines of the paper, with the joules of `energy` and the seconds of `time`."""
    assignment: Literal["in-turn", "random"] = "in-turn"
    """How servers get their profile: one after the other, or at random by the seed."""


class TimeConfig(Section):
    """Simulated seconds, as described in docs/time.md."""

    weak_seconds_per_sample: Seconds = 0.05
    """Time to train on a sample once on machines of type A, which have no profile."""
    strong_seconds_per_sample: Seconds = 0.025
    """Time to train on a sample once on machines of type B, which have no profile."""
    upload_mbit_per_second: Rate = 10.0
    """Rate at which all devices of a server together send it their data, where it has no profile."""
    uplink_mbit_per_second: Rate = 10.0
    """Rate at which a server sends its model to all receivers together, where it has no profile."""
    latency_seconds: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] = 0.02
    """Delay of a message between servers, where they have no profile."""
    upload_trace: str | None = None
    """File with the rate at which a server's devices send it their data over simulated time, in Mbit/s, in place of
    `upload_mbit_per_second` and of profiles (docs/traces.md)."""
    uplink_trace: str | None = None
    """File with the rate at which a server sends its model over simulated time, in Mbit/s, in place of
    `uplink_mbit_per_second` and of profiles (docs/traces.md)."""
    deadline_seconds: Seconds | None = None
    """When a simulated round ends at the latest. Servers that have not trained by then, and models that have not
    arrived, are left out of its exchange; by default everybody is waited for."""
    asynchronous: bool = False
    """Whether simulated servers train at their own pace and merge what has come, instead of waiting for each other. A
    round is then as long as the fastest server needs."""


class PrivacyConfig(Section):
    """Differentially private training (DP-SGD), as described in docs/privacy.md."""

    clip: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] | None = None
    """C: norm that the gradient of a single image is clipped to; null trains without privacy."""
    noise: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = 1.0
    """σ: standard deviation of the noise on the sum of a batch's clipped gradients, as a multiple of C."""
    delta: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = 1e-5
    """δ: probability with which the guarantee may fail; should be far below 1 / number of images."""


class WorldConfig(Section):
    """How servers differ from each other in a simulation, besides their labels, as described in docs/worlds.md."""

    groups: Count = 1
    """Number of groups of servers whose data differ in the way that `differ` names."""
    group_shares: tuple[Positive, ...] | None = None
    """Relative sizes of the groups, such as [0.8, 0.2]; equal by default. Every group has at least one server."""
    differ: Literal["none", "inputs", "labels"] = "none"
    """What differs between groups: nothing, inputs (images are turned or inverted) or labels (a label means another
    class)."""
    changing: Share = 0.0
    """Share of the servers that move to another group during the run."""
    change_at: Share = 0.5
    """When they move, as a share of the run."""
    bad_labels: Share = 0.0
    """Share of the servers whose training labels are mostly wrong."""
    bad_label_rate: Share = 0.8
    """Share of such a server's labels that are replaced by random ones."""
    broken_sensors: Share = 0.0
    """Share of the servers whose training images are noise."""
    amount_ratio: Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)] = 1.0
    """Images of the largest server divided by those of the smallest; servers lie in between at random."""
    liars: Share = 0.0
    """Share of the servers that attack the others."""
    attack: Literal[
        "sign-flip", "scale", "noise", "constant", "stale", "alie", "ipm", "label-flip", "sleeper", "false-reports"
    ] = "sign-flip"
    """What liars send, train on or report (docs/robust.md)."""
    link_loss: tuple[Share, Share] = (0.0, 0.0)
    """Range of the links' loss rates, drawn once for each directed link; no policy is told."""
    price_drift: Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)] = 1.0
    """How far the price of a link changes during a run: up to this factor, down to its inverse."""


class ScheduleConfig(Section):
    """In which rounds links are drawn, for any policy."""

    every: Count = 1
    """Draw links in every m-th round only; servers train in every round."""
    finish_rounds: Annotated[int, Field(ge=0)] = 0
    """Rounds at the end of the run in which all links are used, so that the models agree; at most half of the run."""
    budget_joules: Positive | None = None
    """Hard limit on the total energy of all links in a run, at known prices."""


class Config(Section):
    """All settings of a run."""

    method: str = "hat-dfed"
    """Method whose settings are used where you set none."""
    dataset: str = "digits"
    """Data set: a name in `hatdfed datasets`, an .npz file with x and y, or a folder of images. Own
    data are recorded by name and a digest of their contents."""
    task: str | None = None
    """What is learned: classification, next-token, regression or multi-label; by default what the data are for."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Determines data, devices, prices and initial models. Methods with the same seed run in the same world."""
    servers: Annotated[int, Field(ge=2, le=1_000_000)] = 5
    """N: number of edge servers."""
    rounds: Count = 200
    """K: number of rounds."""
    horizon: Count | None = None
    """Number of rounds that the bandit's learning rate is set for; `rounds` by default. Kept when a run is extended."""

    link_share: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.3
    """γ: share of all links that is drawn in a round."""
    candidates: Count | None = None
    """d: number of other servers that each server considers; all by default. For fleets of thousands: a round then
    costs the coordinator N·d instead of N², and γ is the share of those links."""
    refresh_every: Count = 10
    """Number of rounds after which every server replaces some of its candidates by others."""
    gain_share: Share = 0.6
    """α: weight of accuracy against energy in a link's utility."""
    quality_share: Share = 0.4
    """β: weight of a model's quality against its data volume in a merge."""

    label_concentration: Positive = 0.3
    """λ (elsewhere α) of `split: labels` and `split: dirichlet`: the smaller, the more the servers' labels differ
    (docs/data.md: what that means for each task)."""
    device_online_probability: Share = 0.5
    """ρ: probability that a device connects in a round."""
    churn: Share = 0.0
    """Probability that a server is absent for a period of ten rounds; it then neither trains, sends nor receives."""
    devices: Annotated[int, Field(ge=1, le=1_000_000)] = 30
    """Number of devices of each server."""
    images_per_server: Count = 800
    """Number of samples (images, rows, sequences) that a server owns."""
    samples_per_round: Count = 60
    """Number of samples that all devices of a server hold in a round, online or not."""
    split: str = "labels"
    """How samples are split over servers (docs/worlds.md): labels (label skew by λ, the paper), groups (by the person
    or place they come from), iid, shards, dirichlet, or a partitioner of your own."""
    split_options: dict[str, Any] = {}
    """Settings of the partitioner that `split` names, such as {shards_per_server: 2}."""
    label_groups: Count = 1
    """Number of groups of servers that share no label: servers and labels are assigned to the groups in turn."""
    disjoint: bool = False
    """Whether no two servers may own the same image (D1)."""
    validation_images: Count = 1000
    """Size of the sample that accuracy is measured on during a run (D3)."""
    feedback: Literal["validation", "own", "test"] = "validation"
    """Data that the bandit learns from: a validation sample that all servers share, or images held out from each
    server's own. `test` reproduces a leak of the test set and marks the run (D3)."""
    first_gain_from: Literal["initial-models", "zero"] = "initial-models"
    """P_0, the accuracy before the first round: measured, or zero as released (D8, D13)."""
    common_init: bool = False
    """Whether all servers start from the same model."""

    network: str = "small-cnn"
    """Network that the servers train."""
    local_passes: Annotated[int, Field(ge=1, le=MOST_PASSES)] = 2
    """Number of passes over a round's data (D4)."""
    batch_size: Count = 64
    """Number of samples in a training batch."""
    probe_size: Count = 16
    """B: number of a server's own images on which it evaluates received models (D15)."""
    probe_top_up: bool = False
    """Whether the probe is filled up with images that no device sent (D8)."""
    probe_from: Literal["round", "held-out"] = "round"
    """Images of the probe: those of the round (D15), or own images that the server does not train on: a tenth of them
    in a simulation, the validation images of an edge with its own data."""
    probe_release: Share = 1.0
    """Share of the run after which simulated servers train on the images of `probe_from: held-out` as well; 1: never.
    They are never trained on where `feedback: own` measures servers on them."""
    metrics: tuple[str, ...] = ()
    """Metrics that are recorded besides accuracy and loss (docs/python.md): macro_f1, balanced_accuracy,
    calibration_error, those of the task, or your own."""
    codec: str = "float32"
    """Encoding of models on a link: float32, float16, int8 or int4 (the last two with error feedback)."""

    budget_joules: Positive | None = None
    """Hard limit on the total energy of a run, at known prices: uploads, training and links. Servers rest, and links
    are left out, in rounds that could exceed it."""

    policy: Component = Component(name="link-bandit")
    utility: UtilityConfig = UtilityConfig()
    aggregator: Component = Component(name="importance")
    loss: Component = Component(name="cross-entropy")
    schedule: ScheduleConfig = ScheduleConfig()
    learner: LearnerConfig = LearnerConfig()
    parameters: ParametersConfig = ParametersConfig()
    training: Component = Component(name="always")
    uploads: UploadsConfig = UploadsConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    world: WorldConfig = WorldConfig()
    energy: EnergyConfig = EnergyConfig()
    supply: SupplyConfig = SupplyConfig()
    machines: MachinesConfig = MachinesConfig()
    time: TimeConfig = TimeConfig()
    dataset_options: dict[str, Any] = {}
    """Options passed to the data set's loader."""
    checkpoint_every: Annotated[int, Field(ge=0)] = 10
    """Number of rounds between checkpoints in the run folder; 0 for none."""

    @property
    def has_parameter_server(self) -> bool:
        """Whether one server averages the models of all, so that the run is a reference and not decentralised."""
        return self.policy.name == "parameter-server"

    @property
    def leaks_test(self) -> bool:
        """Whether the run uses the test set before its end."""
        return self.feedback == "test"
