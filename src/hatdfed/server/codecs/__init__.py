"""Codecs by name: how a model looks on a link.

A package adds its own by an entry point of the group `hatdfed.codecs`, which names an object with the methods of
`Codec`; `hatdfed.testing.CodecLaws` are its tests.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hatdfed.registry import Registry
from hatdfed.server.codecs.base import Codec, FittedCodec, Plain
from hatdfed.server.codecs.block_quantised import Int4, Int8

CODECS: Registry[Codec] = Registry(
    "hatdfed.codecs",
    {"float32": Plain(torch.float32), "float16": Plain(torch.float16), "int8": Int8(), "int4": Int4()},
    wanted="an object (not a class) with `init`, `encode` and `decode`",
    fits=lambda thing: not isinstance(thing, type),
    methods=("init", "encode", "decode"),
)


def codec_for(name: str, sizes: Sequence[int]) -> Codec:
    """Return the codec called `name`, for a model of tensors of these sizes."""
    codec = CODECS[name]
    return codec.fitted(sizes) if isinstance(codec, FittedCodec) else codec
