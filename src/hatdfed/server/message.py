"""A model as bytes: how messages between servers look, in the simulator and on a real network alike.

    magic (4) · SHA-256 of the rest (32) · safetensors, whose metadata is the header

Nothing here can run code. Everything is checked before it is believed: length, digest, header fields, the place of
every tensor, and by the receiver's codec its dtype and shape. The format is written and read here and not by its
library, which copies what it reads and writes: an edge has room for its models, not for copies of them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.errors import WireError

MAGIC = b"HDF1"
_PREFIX = len(MAGIC) + hashlib.sha256().digest_size
_FIELDS = ("run", "round", "sender", "num_samples", "mass", "codec")
_MAX_HEADER_BYTES = 64 * 1024
_ALIGNMENT = 64  # bytes; tensors begin at multiples of it, counted from the first byte of a message
_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip
_CODES = {np.dtype(dtype): code for code, dtype in _DTYPES.items()}

Buffer = bytes | bytearray | memoryview


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
    return b"".join(pack_parts(message))


def pack_parts(message: Message) -> list[Buffer]:
    """The same in parts, of which the tensors are views: nothing is copied, so they must stay as they are."""
    values = (message.run, message.t, message.sender, message.num_samples, repr(message.mass), message.codec)
    about = {name: str(value) for name, value in zip(_FIELDS, values, strict=True)}
    body = tensor_parts(message.payload, about, before=_PREFIX)
    digest = hashlib.sha256()
    for part in body:
        digest.update(part)
    return [MAGIC + digest.digest(), *body]


def tensor_parts(tensors: Mapping[str, NDArray[Any]], about: Mapping[str, str], *, before: int = 0) -> list[Buffer]:
    """A safetensors file in parts, again without copies; it comes after so many bytes of something else."""
    header: dict[str, Any] = {"__metadata__": about}
    # Large numbers first, as the format's own library has it: so all are aligned.
    arrays = sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0]))
    end = 0
    for name, array in arrays:
        start, end = end, end + array.nbytes
        header[name] = {"dtype": _CODES[array.dtype], "shape": array.shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(before + 8 + len(text)) % _ALIGNMENT)
    body: list[Buffer] = [len(text).to_bytes(8, "little") + text]
    body += [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for _, array in arrays if array.size]
    return body


def unpack(data: Buffer, *, max_bytes: int | None = None) -> Message:
    """The message behind the bytes, or a `WireError` that says why not.

    The tensors of a `bytearray` lie in it; those of anything else are copied.
    """
    if max_bytes is not None and len(data) > max_bytes:
        raise WireError("too-long", f"A message has {len(data)} bytes, more than the {max_bytes} agreed upon.")
    if len(data) < _PREFIX or data[: len(MAGIC)] != MAGIC:
        raise WireError("not-a-message", "The bytes received are not a hatdfed message.")
    body = memoryview(data)[_PREFIX:]
    if hashlib.sha256(body).digest() != data[len(MAGIC) : _PREFIX]:
        raise WireError("damaged", "A message was damaged on its way: its digest does not match its content.")
    text, header = _header(bytes(body[: _MAX_HEADER_BYTES + 8]))
    places = {name: place for name, place in text.items() if name != "__metadata__"}
    try:
        payload = _tensors(places, body[8 + int.from_bytes(body[:8], "little") :])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise WireError("not-a-message", f"A message holds no readable tensors ({error}).") from None
    if not isinstance(data, bytearray):
        payload = {name: array.copy() for name, array in payload.items()}
    return Message(**header, payload=payload)


def _tensors(places: Mapping[str, Any], data: memoryview) -> dict[str, NDArray[Any]]:
    """Tensors that lie in `data` one after the other, without gaps, overlaps or bytes that belong to none."""
    tensors, end = {}, 0
    for name, place in sorted(places.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape = np.dtype(_DTYPES[place["dtype"]]), _whole_numbers(place["shape"])
        start, stop = _whole_numbers(place["data_offsets"])
        if start != end or stop - start != dtype.itemsize * math.prod(shape) or stop > len(data):
            raise ValueError(f"{name!r} does not lie where it should")
        array = np.frombuffer(data[start:stop], dtype)
        tensors[name], end = np.require(array, requirements="A").reshape(shape), stop
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes belong to no tensor")
    return tensors


def _whole_numbers(values: Sequence[Any]) -> list[int]:
    if any(type(value) is not int or value < 0 for value in values):
        raise ValueError(f"{values} are not whole numbers")
    return list(values)


def message_overhead(num_tensors: int = 4) -> int:
    """More bytes than envelope and header ever take: what `max_bytes` must allow on top of the payload."""
    return _PREFIX + 8 + 1024 + 256 * num_tensors


def _header(start: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """The text at the start of safetensors, and the header fields out of its metadata, typed and in range."""
    try:
        length = int.from_bytes(start[:8], "little")
        if length > _MAX_HEADER_BYTES:
            raise ValueError(f"header of {length} bytes")
        text = json.loads(start[8 : 8 + length])
        fields = text["__metadata__"]
        header = {
            "run": fields["run"],
            "t": int(fields["round"]),
            "sender": int(fields["sender"]),
            "num_samples": int(fields["num_samples"]),
            "mass": float(fields["mass"]),
            "codec": fields["codec"],
        }
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise WireError("bad-header", f"A message has a header that cannot be read ({error}).") from None
    if min(header["t"], header["sender"], header["num_samples"]) < 0 or not 0 <= header["mass"] < math.inf:
        raise WireError("bad-header", "A message has a header with a number out of range.")
    return text, header
