"""A model as bytes: how messages between servers look, in the simulator and on a real network alike.

    magic (4) · SHA-256 of the rest (32) · safetensors, whose metadata is the header

Nothing here can run code. Everything is checked before it is believed: length, digest, header fields, and by the
receiver's codec the dtype and shape of every tensor.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from hatdfed.errors import WireError

MAGIC = b"HDF1"
_PREFIX = len(MAGIC) + hashlib.sha256().digest_size
_FIELDS = ("run", "round", "sender", "num_samples", "mass", "codec")
_MAX_HEADER_BYTES = 64 * 1024


class Message(NamedTuple):
    """One model on its way, with what the receiver needs to weigh it."""

    run: str
    t: int
    sender: int
    num_samples: int
    mass: float
    codec: str
    payload: Mapping[str, NDArray[Any]]


def pack(message: Message) -> bytes:
    """The message as bytes."""
    values = (message.run, message.t, message.sender, message.num_samples, repr(message.mass), message.codec)
    header = {name: str(value) for name, value in zip(_FIELDS, values, strict=True)}
    body = save({name: np.ascontiguousarray(array) for name, array in message.payload.items()}, metadata=header)
    return MAGIC + hashlib.sha256(body).digest() + body


def unpack(data: bytes, *, max_bytes: int | None = None) -> Message:
    """The message behind the bytes, or a `WireError` that says why not."""
    if max_bytes is not None and len(data) > max_bytes:
        raise WireError("too-long", f"A message has {len(data)} bytes, more than the {max_bytes} agreed upon.")
    if len(data) < _PREFIX or data[: len(MAGIC)] != MAGIC:
        raise WireError("not-a-message", "The bytes received are not a hatdfed message.")
    body = memoryview(data)[_PREFIX:]
    if hashlib.sha256(body).digest() != data[len(MAGIC) : _PREFIX]:
        raise WireError("damaged", "A message was damaged on its way: its digest does not match its content.")
    header = _header(bytes(body[: _MAX_HEADER_BYTES + 8]))
    try:
        payload = load(bytes(body))
    except (SafetensorError, KeyError, ValueError) as error:
        raise WireError("not-a-message", f"A message holds no readable tensors ({error}).") from None
    return Message(**header, payload=payload)


def message_overhead(num_tensors: int = 4) -> int:
    """More bytes than envelope and header ever take: what `max_bytes` must allow on top of the payload."""
    return _PREFIX + 8 + 1024 + 256 * num_tensors


def _header(start: bytes) -> dict[str, Any]:
    """The header fields out of safetensors' own metadata, typed and in range."""
    try:
        length = int.from_bytes(start[:8], "little")
        if length > _MAX_HEADER_BYTES:
            raise ValueError(f"header of {length} bytes")
        fields = json.loads(start[8 : 8 + length])["__metadata__"]
        header = {
            "run": fields["run"],
            "t": int(fields["round"]),
            "sender": int(fields["sender"]),
            "num_samples": int(fields["num_samples"]),
            "mass": float(fields["mass"]),
            "codec": fields["codec"],
        }
    except (KeyError, TypeError, ValueError) as error:
        raise WireError("bad-header", f"A message has a header that cannot be read ({error}).") from None
    if min(header["t"], header["sender"], header["num_samples"]) < 0 or not 0 <= header["mass"] < math.inf:
        raise WireError("bad-header", "A message has a header with a number out of range.")
    return header
