"""Decentralized federated learning at the edge with a learned, energy-aware topology.

>>> import hatdfed
>>> result = hatdfed.run(method="hat-dfed", dataset="digits", rounds=2)
>>> sorted(result.summary)[:2]
['accuracy_by_server', 'avg_accuracy']
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hatdfed.version import __version__

if TYPE_CHECKING:
    from hatdfed.comparison import Comparison, compare
    from hatdfed.config import Config
    from hatdfed.experiment import resume, run
    from hatdfed.methods import METHODS
    from hatdfed.resolve import resolve
    from hatdfed.session import RunResult
    from hatdfed.sweeps.sweep import SweepResult, sweep

__all__ = [
    "METHODS",
    "Comparison",
    "Config",
    "RunResult",
    "SweepResult",
    "__version__",
    "compare",
    "resolve",
    "resume",
    "run",
    "sweep",
]

# Loaded when first used: a coordinator imports parts of this package on machines that have no torch.
_HOMES = {
    "METHODS": "hatdfed.methods",
    "Comparison": "hatdfed.comparison",
    "Config": "hatdfed.config",
    "RunResult": "hatdfed.session",
    "SweepResult": "hatdfed.sweeps.sweep",
    "compare": "hatdfed.comparison",
    "resolve": "hatdfed.resolve",
    "resume": "hatdfed.experiment",
    "run": "hatdfed.experiment",
    "sweep": "hatdfed.sweeps.sweep",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hatdfed' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
