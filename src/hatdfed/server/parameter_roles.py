"""What travels: which tensors of a network are sent, which stay at their server, and which never change.

*Shared* tensors are trained, sent and merged. *Personal* ones are trained and stay at their server. *Frozen* ones are
neither trained nor sent: all servers have the same values, which are in memory once.

A network declares its own roles: a parameter with `requires_grad=False` is frozen, and an attribute
`personal_parameters` lists patterns for names of personal ones. The settings `parameters` override this. Everything
else is shared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from hatdfed.errors import ConfigError
from hatdfed.server.guard import compute_norms

ParameterRole = Literal["shared", "personal", "frozen"]
_NAMES_TOLD = 6  # of a network's tensors, in a message about a pattern that matches none


@dataclass(frozen=True)
class RolePatterns:
    """Shell-style patterns for names of a network's `state_dict`."""

    shared: tuple[str, ...] = ()
    personal: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()


class SentPart(NamedTuple):
    """Where the P numbers that are sent lie among the M that a server keeps of its model."""

    length: int  # M
    start: int
    stop: int

    @classmethod
    def whole(cls, length: int) -> SentPart:
        """Everything is sent."""
        return cls(length, 0, length)

    @property
    def is_whole(self) -> bool:
        """Whether nothing stays at home."""
        return self.size == self.length

    @property
    def size(self) -> int:
        """P."""
        return self.stop - self.start

    def take(self, params: Tensor) -> Tensor:  # [..., M] -> [..., P]
        """Return the part that is sent, as a view."""
        return params if self.is_whole else params[..., self.start : self.stop]

    def put(self, params: Tensor, sent: Tensor) -> Tensor:  # [..., M], [..., P] -> [..., M]
        """Return the models `params` with the sent parts of others; `sent` itself if nothing stays at home."""
        if self.is_whole:
            return sent
        joined = params.clone()
        joined[..., self.start : self.stop] = sent
        return joined

    def compute_personal_norms(self, params: Tensor) -> Tensor:  # [..., M] -> [...]
        """Compute the norms of what stays at home."""
        return torch.hypot(compute_norms(params[..., : self.start]), compute_norms(params[..., self.stop :]))


def assign_roles(module: nn.Module, patterns: RolePatterns | None = None) -> dict[str, ParameterRole]:
    """Return the role of every parameter and every floating-point buffer of a network.

    A buffer that nobody names has the role of its module's own parameters if they agree, and is shared otherwise. One
    that is not part of the `state_dict` is frozen: it is a constant of the network.
    """
    parameters = dict(module.named_parameters())
    buffers = [name for name, buffer in module.named_buffers() if buffer.is_floating_point()]
    names, saved = [*parameters, *buffers], module.state_dict().keys()
    named: dict[str, ParameterRole] = {name: "frozen" for name in buffers if name not in saved}
    named |= {name: "frozen" for name, parameter in parameters.items() if not parameter.requires_grad}
    personal: Sequence[str] = getattr(module, "personal_parameters", ())
    named |= dict.fromkeys(_match(personal, names, "personal_parameters of the network"), "personal")
    named |= _match_all(patterns or RolePatterns(), names)
    roles: dict[str, ParameterRole] = {name: named.get(name, "shared") for name in parameters}
    for name in buffers:
        siblings = {roles[other] for other in parameters if other.rpartition(".")[0] == name.rpartition(".")[0]}
        roles[name] = named.get(name, siblings.pop() if len(siblings) == 1 else "shared")
    if not any(roles[name] == "shared" for name in parameters):
        raise ConfigError(
            "No parameter of the network is left to be trained and sent: all are personal or frozen. Check the "
            "patterns in parameters.personal and parameters.frozen; for learning alone, use method local."
        )
    return roles


def freeze(module: nn.Module, roles: Mapping[str, ParameterRole]) -> dict[str, Tensor]:
    """Prepare a module for training in which its frozen tensors do not change, and return these.

    A layer with frozen buffers computes as in evaluation: in training, a batch norm would update its statistics.
    """
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    frozen = {name: tensors[name].requires_grad_(False) for name, role in roles.items() if role == "frozen"}
    saved = module.state_dict().keys()
    for prefix, layer in module.named_modules():
        own = (f"{prefix}.{name}" if prefix else name for name, _ in layer.named_buffers(recurse=False))
        if any(name in frozen and name in saved for name in own):
            layer.training = False  # of this layer only, not of those inside it
    return frozen


def digest_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Compute a digest of names, shapes and values."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _match_all(patterns: RolePatterns, names: Sequence[str]) -> dict[str, ParameterRole]:
    """Return the role of each name that a pattern matches; refuses names with two roles."""
    found: dict[str, ParameterRole] = {}
    of_role: dict[ParameterRole, tuple[str, ...]] = {
        "shared": patterns.shared,
        "personal": patterns.personal,
        "frozen": patterns.frozen,
    }
    for role, those in of_role.items():
        for name in _match(those, names, f"parameters.{role}"):
            if name in found:
                raise ConfigError(
                    f"parameters.{found[name]} and parameters.{role} both match {name}, which can have one role only. "
                    "Make one of the patterns narrower."
                )
            found[name] = role
    return found


def _match(patterns: Iterable[str], names: Sequence[str], where: str) -> list[str]:
    """Return the names that a pattern matches; refuses a pattern that matches none."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            told = ", ".join(islice(names, _NAMES_TOLD)) + (", …" if len(names) > _NAMES_TOLD else "")
            raise ConfigError(f"{where} has {pattern!r}, but no tensor of the network matches it. It has {told}.")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
