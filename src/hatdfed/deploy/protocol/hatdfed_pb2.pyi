from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Nothing(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "version", "address", "run", "process")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    address: str
    run: str
    process: str
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., address: _Optional[str] = ..., run: _Optional[str] = ..., process: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("run", "epoch", "index", "config", "beat_seconds", "idle_seconds", "round", "copy_from", "denied", "connection_seconds", "least_bytes_per_second", "relay", "version")
    RUN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    BEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    IDLE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    COPY_FROM_FIELD_NUMBER: _ClassVar[int]
    DENIED_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LEAST_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    RELAY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    run: str
    epoch: int
    index: int
    config: str
    beat_seconds: float
    idle_seconds: float
    round: int
    copy_from: _containers.RepeatedCompositeFieldContainer[Neighbour]
    denied: DenyList
    connection_seconds: float
    least_bytes_per_second: float
    relay: RelayAddress
    version: str
    def __init__(self, run: _Optional[str] = ..., epoch: _Optional[int] = ..., index: _Optional[int] = ..., config: _Optional[str] = ..., beat_seconds: _Optional[float] = ..., idle_seconds: _Optional[float] = ..., round: _Optional[int] = ..., copy_from: _Optional[_Iterable[_Union[Neighbour, _Mapping]]] = ..., denied: _Optional[_Union[DenyList, _Mapping]] = ..., connection_seconds: _Optional[float] = ..., least_bytes_per_second: _Optional[float] = ..., relay: _Optional[_Union[RelayAddress, _Mapping]] = ..., version: _Optional[str] = ...) -> None: ...

class Prepared(_message.Message):
    __slots__ = ("epoch", "num_params", "bits_per_sample", "layout", "message_share", "accuracy", "round", "relayed", "forward_flops")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUM_PARAMS_FIELD_NUMBER: _ClassVar[int]
    BITS_PER_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_SHARE_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    RELAYED_FIELD_NUMBER: _ClassVar[int]
    FORWARD_FLOPS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    num_params: int
    bits_per_sample: int
    layout: str
    message_share: float
    accuracy: float
    round: int
    relayed: bool
    forward_flops: float
    def __init__(self, epoch: _Optional[int] = ..., num_params: _Optional[int] = ..., bits_per_sample: _Optional[int] = ..., layout: _Optional[str] = ..., message_share: _Optional[float] = ..., accuracy: _Optional[float] = ..., round: _Optional[int] = ..., relayed: bool = ..., forward_flops: _Optional[float] = ...) -> None: ...

class RelayAddress(_message.Message):
    __slots__ = ("name", "address")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class Watching(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class Neighbour(_message.Message):
    __slots__ = ("index", "name", "address", "dial", "mixing", "relayed")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DIAL_FIELD_NUMBER: _ClassVar[int]
    MIXING_FIELD_NUMBER: _ClassVar[int]
    RELAYED_FIELD_NUMBER: _ClassVar[int]
    index: int
    name: str
    address: str
    dial: bool
    mixing: float
    relayed: bool
    def __init__(self, index: _Optional[int] = ..., name: _Optional[str] = ..., address: _Optional[str] = ..., dial: bool = ..., mixing: _Optional[float] = ..., relayed: bool = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("epoch", "round", "probe", "finish", "stop", "leave", "missing")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    round: RoundOrder
    probe: ProbeOrder
    finish: Nothing
    stop: Nothing
    leave: str
    missing: Missing
    def __init__(self, epoch: _Optional[int] = ..., round: _Optional[_Union[RoundOrder, _Mapping]] = ..., probe: _Optional[_Union[ProbeOrder, _Mapping]] = ..., finish: _Optional[_Union[Nothing, _Mapping]] = ..., stop: _Optional[_Union[Nothing, _Mapping]] = ..., leave: _Optional[str] = ..., missing: _Optional[_Union[Missing, _Mapping]] = ...) -> None: ...

class RoundOrder(_message.Message):
    __slots__ = ("round", "seconds", "receivers", "senders", "own_mixing", "passes", "asks")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    RECEIVERS_FIELD_NUMBER: _ClassVar[int]
    SENDERS_FIELD_NUMBER: _ClassVar[int]
    OWN_MIXING_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    ASKS_FIELD_NUMBER: _ClassVar[int]
    round: int
    seconds: float
    receivers: _containers.RepeatedCompositeFieldContainer[Neighbour]
    senders: _containers.RepeatedCompositeFieldContainer[Neighbour]
    own_mixing: float
    passes: int
    asks: bool
    def __init__(self, round: _Optional[int] = ..., seconds: _Optional[float] = ..., receivers: _Optional[_Iterable[_Union[Neighbour, _Mapping]]] = ..., senders: _Optional[_Iterable[_Union[Neighbour, _Mapping]]] = ..., own_mixing: _Optional[float] = ..., passes: _Optional[int] = ..., asks: bool = ...) -> None: ...

class Missing(_message.Message):
    __slots__ = ("round", "servers", "silent")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    round: int
    servers: _containers.RepeatedScalarFieldContainer[int]
    silent: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, round: _Optional[int] = ..., servers: _Optional[_Iterable[int]] = ..., silent: _Optional[_Iterable[int]] = ...) -> None: ...

class ProbeOrder(_message.Message):
    __slots__ = ("peers",)
    PEERS_FIELD_NUMBER: _ClassVar[int]
    peers: _containers.RepeatedCompositeFieldContainer[Neighbour]
    def __init__(self, peers: _Optional[_Iterable[_Union[Neighbour, _Mapping]]] = ...) -> None: ...

class Reachable(_message.Message):
    __slots__ = ("epoch", "yes", "no", "lost", "round")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    YES_FIELD_NUMBER: _ClassVar[int]
    NO_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    yes: _containers.RepeatedScalarFieldContainer[int]
    no: _containers.RepeatedScalarFieldContainer[int]
    lost: _containers.RepeatedScalarFieldContainer[int]
    round: int
    def __init__(self, epoch: _Optional[int] = ..., yes: _Optional[_Iterable[int]] = ..., no: _Optional[_Iterable[int]] = ..., lost: _Optional[_Iterable[int]] = ..., round: _Optional[int] = ...) -> None: ...

class Slot(_message.Message):
    __slots__ = ("server", "importance", "scores")
    class ScoresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    SERVER_FIELD_NUMBER: _ClassVar[int]
    IMPORTANCE_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    server: int
    importance: float
    scores: _containers.ScalarMap[str, float]
    def __init__(self, server: _Optional[int] = ..., importance: _Optional[float] = ..., scores: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Sent(_message.Message):
    __slots__ = ("receiver", "share", "delivered", "again")
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    receiver: int
    share: float
    delivered: bool
    again: float
    def __init__(self, receiver: _Optional[int] = ..., share: _Optional[float] = ..., delivered: bool = ..., again: _Optional[float] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("name", "reason", "count")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    name: str
    reason: str
    count: int
    def __init__(self, name: _Optional[str] = ..., reason: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class Metered(_message.Message):
    __slots__ = ("cause", "meter", "joules", "uncertainty")
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    METER_FIELD_NUMBER: _ClassVar[int]
    JOULES_FIELD_NUMBER: _ClassVar[int]
    UNCERTAINTY_FIELD_NUMBER: _ClassVar[int]
    cause: str
    meter: str
    joules: float
    uncertainty: float
    def __init__(self, cause: _Optional[str] = ..., meter: _Optional[str] = ..., joules: _Optional[float] = ..., uncertainty: _Optional[float] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("epoch", "round", "accuracy", "num_samples", "devices_online", "slots", "sent", "refused", "sketch", "num_sent", "metered", "training_loss", "validation_loss", "metrics", "refusals")
    class RefusedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_ONLINE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    SKETCH_FIELD_NUMBER: _ClassVar[int]
    NUM_SENT_FIELD_NUMBER: _ClassVar[int]
    METERED_FIELD_NUMBER: _ClassVar[int]
    TRAINING_LOSS_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_LOSS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    round: int
    accuracy: float
    num_samples: int
    devices_online: int
    slots: _containers.RepeatedCompositeFieldContainer[Slot]
    sent: _containers.RepeatedCompositeFieldContainer[Sent]
    refused: _containers.ScalarMap[str, int]
    sketch: _containers.RepeatedScalarFieldContainer[float]
    num_sent: int
    metered: _containers.RepeatedCompositeFieldContainer[Metered]
    training_loss: float
    validation_loss: float
    metrics: _containers.ScalarMap[str, float]
    refusals: _containers.RepeatedCompositeFieldContainer[Refusal]
    def __init__(self, epoch: _Optional[int] = ..., round: _Optional[int] = ..., accuracy: _Optional[float] = ..., num_samples: _Optional[int] = ..., devices_online: _Optional[int] = ..., slots: _Optional[_Iterable[_Union[Slot, _Mapping]]] = ..., sent: _Optional[_Iterable[_Union[Sent, _Mapping]]] = ..., refused: _Optional[_Mapping[str, int]] = ..., sketch: _Optional[_Iterable[float]] = ..., num_sent: _Optional[int] = ..., metered: _Optional[_Iterable[_Union[Metered, _Mapping]]] = ..., training_loss: _Optional[float] = ..., validation_loss: _Optional[float] = ..., metrics: _Optional[_Mapping[str, float]] = ..., refusals: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ...) -> None: ...

class Received(_message.Message):
    __slots__ = ("accepted", "reason")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    reason: str
    def __init__(self, accepted: bool = ..., reason: _Optional[str] = ...) -> None: ...

class FinalFigures(_message.Message):
    __slots__ = ("epoch", "has_test", "accuracy", "personal_accuracy", "validation_accuracy", "private_rounds", "own_accuracy", "without_classes", "metrics", "confusion")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HAS_TEST_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    PERSONAL_ACCURACY_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_ACCURACY_FIELD_NUMBER: _ClassVar[int]
    PRIVATE_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    OWN_ACCURACY_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_CLASSES_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    CONFUSION_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    has_test: bool
    accuracy: float
    personal_accuracy: float
    validation_accuracy: float
    private_rounds: int
    own_accuracy: float
    without_classes: bool
    metrics: _containers.ScalarMap[str, float]
    confusion: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., has_test: bool = ..., accuracy: _Optional[float] = ..., personal_accuracy: _Optional[float] = ..., validation_accuracy: _Optional[float] = ..., private_rounds: _Optional[int] = ..., own_accuracy: _Optional[float] = ..., without_classes: bool = ..., metrics: _Optional[_Mapping[str, float]] = ..., confusion: _Optional[_Iterable[int]] = ...) -> None: ...

class Pulse(_message.Message):
    __slots__ = ("epoch", "round", "doing", "denied", "relayed")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DOING_FIELD_NUMBER: _ClassVar[int]
    DENIED_FIELD_NUMBER: _ClassVar[int]
    RELAYED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    round: int
    doing: str
    denied: str
    relayed: bool
    def __init__(self, epoch: _Optional[int] = ..., round: _Optional[int] = ..., doing: _Optional[str] = ..., denied: _Optional[str] = ..., relayed: bool = ...) -> None: ...

class Heard(_message.Message):
    __slots__ = ("denied",)
    DENIED_FIELD_NUMBER: _ClassVar[int]
    denied: DenyList
    def __init__(self, denied: _Optional[_Union[DenyList, _Mapping]] = ...) -> None: ...

class DenyList(_message.Message):
    __slots__ = ("digest", "names")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    digest: str
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, digest: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("why",)
    WHY_FIELD_NUMBER: _ClassVar[int]
    why: str
    def __init__(self, why: _Optional[str] = ...) -> None: ...

class SigningRequest(_message.Message):
    __slots__ = ("csr",)
    CSR_FIELD_NUMBER: _ClassVar[int]
    csr: bytes
    def __init__(self, csr: _Optional[bytes] = ...) -> None: ...

class Certificate(_message.Message):
    __slots__ = ("certificate",)
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    def __init__(self, certificate: _Optional[bytes] = ...) -> None: ...

class StatusText(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class NodeName(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("parcel", "chunk")
    PARCEL_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    parcel: Parcel
    chunk: bytes
    def __init__(self, parcel: _Optional[_Union[Parcel, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class Parcel(_message.Message):
    __slots__ = ("run", "round", "sender", "size", "digest", "offset", "part_bytes", "part_digests")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PART_BYTES_FIELD_NUMBER: _ClassVar[int]
    PART_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    sender: int
    size: int
    digest: bytes
    offset: int
    part_bytes: int
    part_digests: bytes
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., sender: _Optional[int] = ..., size: _Optional[int] = ..., digest: _Optional[bytes] = ..., offset: _Optional[int] = ..., part_bytes: _Optional[int] = ..., part_digests: _Optional[bytes] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("offset",)
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: int
    def __init__(self, offset: _Optional[int] = ...) -> None: ...

class Wanted(_message.Message):
    __slots__ = ("run", "round", "digest", "offset", "confirms")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONFIRMS_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    digest: bytes
    offset: int
    confirms: bool
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., digest: _Optional[bytes] = ..., offset: _Optional[int] = ..., confirms: bool = ...) -> None: ...
