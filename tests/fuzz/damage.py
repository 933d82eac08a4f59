"""Bad input of every kind: damaged bytes, odd numbers, odd text, JSON and protocol messages with a field changed.

Everything is drawn from a `random.Random`: an ordinary one for many cases in little time, or one of Hypothesis', which
then shrinks what it finds.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

AnyMessage = TypeVar("AnyMessage", bound=Message)

_INTEGERS = (0, 1, -1, 2, 7, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, -(2**31), 2**31, 2**32, 2**40, 2**53 + 1)
_LONG_INTEGERS = (2**63 - 1, -(2**63), 2**64, 10**30, 10**400)
_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1.001, 1e-300, 1e30, 1e300, -1e300, math.inf, -math.inf, math.nan)
_TEXTS = ("", " ", "0", "x" * 300, "\x00", "\n", "ä€😀", "\ufffd", "null", "../..", "%s{}", "-1e999")
_PIECES = (b"\0" * 8, b"\xff" * 8, b"\0" * 64, b"[" * 64, b"-1", b"9" * 20, b"\n", b"\x7f", b"{", b'"')


def draw_integer(rng: Random) -> int:
    """A number at the edge of some range, or a small one."""
    return rng.choice((*_INTEGERS, *_LONG_INTEGERS)) if rng.random() < 0.7 else rng.randint(-100, 100)


def draw_float(rng: Random) -> float:
    """A number that many forget, or any other."""
    return rng.choice(_FLOATS) if rng.random() < 0.7 else rng.uniform(-2, 2)


def draw_text(rng: Random) -> str:
    """A text that is empty, long, or of odd letters."""
    if rng.random() < 0.6:
        return rng.choice(_TEXTS)
    return "".join(chr(rng.choice((rng.randint(32, 126), rng.randint(0, 0xD7FF)))) for _ in range(rng.randint(0, 12)))


def draw_json(rng: Random, depth: int = 2) -> Any:
    """Any JSON value."""
    kind = rng.randint(0, 6 if depth else 4)
    if kind == 5:
        return [draw_json(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    if kind == 6:
        return {draw_text(rng): draw_json(rng, depth - 1) for _ in range(rng.randint(0, 3))}
    text = "\ud800" if rng.random() < 0.1 else draw_text(rng)  # half of a letter, which JSON can hold
    return (None, rng.random() < 0.5, draw_integer(rng), draw_float(rng), text)[kind]


def draw_noise(rng: Random, most_bytes: int = 200) -> bytes:
    """Any bytes."""
    return bytes(rng.randint(0, 255) for _ in range(rng.randint(0, most_bytes)))


def damage(rng: Random, data: bytes, *, most_edits: int = 4) -> bytes:
    """The bytes with a few changes, sometimes none; now and then only noise."""
    if rng.random() < 0.05:
        return draw_noise(rng)
    for _ in range(rng.randint(0, most_edits)):
        data = _edit(rng, data)
    return data


def _edit(rng: Random, data: bytes) -> bytes:
    start = rng.randint(0, len(data))
    stop = min(len(data), start + rng.randint(0, 16))
    piece = rng.choice(_PIECES) if rng.random() < 0.5 else draw_noise(rng, 12)
    match rng.randint(0, 6):
        case 0:
            bits = bytes(byte ^ (1 << rng.randint(0, 7)) for byte in data[start : start + 1])
            return data[:start] + bits + data[start + 1 :]
        case 1:
            return data[:start] + piece + data[start + len(piece) :]
        case 2:
            return data[:start] + piece + data[start:]
        case 3:
            return data[:start] + data[stop:]
        case 4:
            return data[:start]
        case 5:
            return data[:stop] + data[start:stop] * 3 + data[stop:]
        case _:
            return data[stop:] + data[:stop]


def change_json(rng: Random, sample: Any) -> Any:
    """The sample with some of its values, at any depth, replaced, removed or added."""
    content = copy.deepcopy(sample)
    for _ in range(rng.randint(0, 3)):
        place, key = _find_place(rng, content)
        if place is None:
            return draw_json(rng)
        if isinstance(place, dict) and rng.random() < 0.2:
            place.pop(key, None)
        elif isinstance(place, dict) and rng.random() < 0.1:
            place[draw_text(rng)] = draw_json(rng)
        else:
            place[key] = draw_json(rng)
    return content


def _find_place(rng: Random, content: Any) -> tuple[Any, Any]:
    """A dict or list somewhere in the content, and a key or index of it."""
    place, key = None, None
    while isinstance(content, dict | list) and content and (place is None or rng.random() < 0.7):
        keys = list(content) if isinstance(content, dict) else range(len(content))
        place, key = content, rng.choice(list(keys))
        content = content[key]
    return place, key


def change_message(rng: Random, sample: AnyMessage) -> AnyMessage:
    """A message of the protocol with some of its fields changed; sometimes by damage to its bytes."""
    message = type(sample)()
    if rng.random() < 0.25:
        try:
            message.ParseFromString(damage(rng, sample.SerializeToString()))
        except DecodeError:
            return type(sample)()  # the network's library refuses it before anybody sees it
        return message
    message.CopyFrom(sample)
    for _ in range(rng.randint(0, 4)):
        _change_field(rng, message)
    return message


def _change_field(rng: Random, message: Any) -> None:
    fields: Sequence[Any] = list(message.DESCRIPTOR.fields)
    if not fields:
        return
    field = rng.choice(fields)
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        kind = field.message_type.fields_by_name["value"]
        for _ in range(rng.choice((1, 2, 100))):
            value[draw_text(rng)] = _draw_scalar(rng, kind)
    elif field.is_repeated and field.message_type is not None:
        _change_list(rng, value)
    elif field.is_repeated:
        del value[rng.randint(0, len(value)) :]
        value.extend(_draw_scalar(rng, field) for _ in range(rng.randint(0, 5)))
    elif field.message_type is not None:
        _change_field(rng, value)
    else:
        setattr(message, field.name, _draw_scalar(rng, field))


def _change_list(rng: Random, values: Any) -> None:
    how = rng.randint(0, 3)
    if how == 0:
        del values[:]
    elif how == 1 or not values:
        _change_field(rng, values.add())
    elif how == 2:
        values.add().CopyFrom(rng.choice(list(values)))
    else:
        _change_field(rng, rng.choice(list(values)))


def _draw_scalar(rng: Random, field: Any) -> Any:
    if field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_INT64):
        bits = 31 if field.cpp_type == field.CPPTYPE_INT32 else 63
        return rng.choice([number for number in (*_INTEGERS, 2**63 - 1, -(2**63)) if -(2**bits) <= number < 2**bits])
    if field.cpp_type in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64):
        bits = 32 if field.cpp_type == field.CPPTYPE_UINT32 else 64
        return rng.choice([number for number in (*_INTEGERS, 2**63, 2**64 - 1) if 0 <= number < 2**bits])
    if field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        return draw_float(rng)
    if field.cpp_type == field.CPPTYPE_BOOL:
        return rng.random() < 0.5
    return draw_noise(rng, 40) if field.type == field.TYPE_BYTES else draw_text(rng)
