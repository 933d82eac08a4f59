"""Messages between servers: a model as bytes, the same in simulations and on a real network.

    magic (4) · SHA-256 of the rest (32) · safetensors, whose metadata is the header

Nothing in a message can run code. Everything is checked before it is used: length, digest, header fields, the position
of every tensor, and, by the receiver's codec, its dtype and shape. The format is written and read here and not by the
safetensors library, which copies the tensors: an edge server has memory for its models, not for copies of them.
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
_MAX_COUNT = 2**31  # rounds, servers, samples
_ALIGNMENT = 64  # bytes; tensors start at multiples of it, counted from the first byte of a message
_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip
_CODES = {np.dtype(dtype): code for code, dtype in _DTYPES.items()}

Buffer = bytes | bytearray | memoryview


class Message(NamedTuple):
    """One encoded model, with what the receiver needs to weight it."""

    run: str
    t: int
    sender: int
    num_samples: int
    mass: float
    codec: str
    payload: Mapping[str, NDArray[Any]]
    label_shares: bytes = b""  # one byte for each label, where the receiver's rule wants them


def pack(message: Message) -> bytes:
    """Pack the message into bytes."""
    return b"".join(pack_parts(message))


def pack_parts(message: Message) -> list[Buffer]:
    """Pack the message in parts; tensors are views, not copies, so they must not change meanwhile."""
    values = (message.run, message.t, message.sender, message.num_samples, repr(message.mass), message.codec)
    about = {name: str(value) for name, value in zip(_FIELDS, values, strict=True)}
    if message.label_shares:
        about["label_shares"] = message.label_shares.hex()
    body = pack_tensors(message.payload, about, before=_PREFIX)
    digest = hashlib.sha256()
    for part in body:
        digest.update(part)
    return [MAGIC + digest.digest(), *body]


def pack_tensors(tensors: Mapping[str, NDArray[Any]], about: Mapping[str, str], *, before: int = 0) -> list[Buffer]:
    """Pack a safetensors file in parts, without copies; `before` is the number of bytes that precede it."""
    header: dict[str, Any] = {"__metadata__": about}
    # Largest item size first, as the safetensors library does, so that all tensors are aligned.
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
    """Unpack a message; a `WireError` says why the bytes are refused.

    The tensors are views of `data` if it is a `bytearray`, otherwise copies.
    """
    if max_bytes is not None and len(data) > max_bytes:
        raise WireError("too-long", f"A message has {len(data)} bytes, more than the {max_bytes} allowed.")
    if len(data) < _PREFIX or data[: len(MAGIC)] != MAGIC:
        raise WireError("not-a-message", "The bytes received are not a hatdfed message.")
    body = memoryview(data)[_PREFIX:]
    if hashlib.sha256(body).digest() != data[len(MAGIC) : _PREFIX]:
        raise WireError("damaged", "A message was damaged in transit: its digest does not match its content.")
    text, header = _read_header(bytes(body[: _MAX_HEADER_BYTES + 8]))
    places = {name: place for name, place in text.items() if name != "__metadata__"}
    try:
        payload = _read_tensors(places, body[8 + int.from_bytes(body[:8], "little") :])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise WireError("not-a-message", f"A message holds no readable tensors ({error}).") from None
    if not isinstance(data, bytearray):
        payload = {name: array.copy() for name, array in payload.items()}
    return Message(**header, payload=payload)


def _read_tensors(places: Mapping[str, Any], data: memoryview) -> dict[str, NDArray[Any]]:
    """Read tensors that lie in `data` one after the other, without gaps, overlaps or extra bytes."""
    tensors, end = {}, 0
    for name, place in sorted(places.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape = np.dtype(_DTYPES[place["dtype"]]), _check_whole_numbers(place["shape"])
        start, stop = _check_whole_numbers(place["data_offsets"])
        if start != end or stop - start != dtype.itemsize * math.prod(shape) or stop > len(data):
            raise ValueError(f"{name!r} does not lie where it should")
        array = np.frombuffer(data[start:stop], dtype)
        tensors[name], end = np.require(array, requirements="A").reshape(shape), stop
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes belong to no tensor")
    return tensors


def _check_whole_numbers(values: Sequence[Any]) -> list[int]:
    if any(type(value) is not int or value < 0 for value in values):
        raise ValueError(f"{values} are not whole numbers")
    return list(values)


def compute_overhead(num_tensors: int = 4, num_labels: int = 0) -> int:
    """Return an upper bound on the bytes of magic, digest and header, which `max_bytes` must allow for."""
    return _PREFIX + 8 + 1024 + 256 * num_tensors + 2 * num_labels


def _read_header(start: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the safetensors header, and from its metadata the fields of the message, typed and in range."""
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
            "label_shares": bytes.fromhex(fields.get("label_shares", "")),
        }
        if not isinstance(header["run"], str) or not isinstance(header["codec"], str):
            raise TypeError("run and codec are no texts")
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise WireError("bad-header", f"A message has a header that cannot be read ({error}).") from None
    counts = (header["t"], header["sender"], header["num_samples"])
    if not all(0 <= count <= _MAX_COUNT for count in counts) or not 0 <= header["mass"] < math.inf:
        raise WireError("bad-header", "A message has a header with a number out of range.")
    return text, header
