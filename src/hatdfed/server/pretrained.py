"""Weights from a file, for networks that begin with more than random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from hatdfed.errors import ConfigError


def load_weights(module: nn.Module, path: str | Path, *, skip: Sequence[str] = ()) -> None:
    """Copy the tensors of a .safetensors file into the tensors of `module` that have the same names.

    `skip` are shell-style patterns for tensors of the file that are not used, such as those of another output layer.
    Tensors of the module that the file does not have stay as they are; one that only the file has is refused.
    """
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"The weights {path} cannot be read ({error}). Give a .safetensors file.") from None
    known = module.state_dict()
    for name, tensor in tensors.items():
        if any(fnmatchcase(name, pattern) for pattern in skip):
            continue
        if name not in known:
            raise ConfigError(f"The weights {path} have a tensor {name}, but the network has none. Skip it by name.")
        if tensor.shape != known[name].shape:
            shapes = f"the shape {list(tensor.shape)}, but the network wants {list(known[name].shape)}"
            raise ConfigError(f"In the weights {path}, {name} has {shapes}. Skip it by name, or use another file.")
        with torch.no_grad():
            known[name].copy_(tensor)  # of the module itself, not of a copy
