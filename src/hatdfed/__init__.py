"""Decentralized federated learning at the edge with an energy-aware topology.

>>> import hatdfed
>>> result = hatdfed.run(method="hat-dfed", dataset="digits", rounds=2)
>>> result.summary["rounds"]
2
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hatdfed.version import __version__

if TYPE_CHECKING:
    from hatdfed.runs.callbacks import Callback
    from hatdfed.runs.calls import resume, run
    from hatdfed.runs.result import RunResult
    from hatdfed.runs.statistics import Comparison
    from hatdfed.setup.config import Config
    from hatdfed.setup.layers import resolve
    from hatdfed.setup.methods import METHODS
    from hatdfed.sweeps.calls import compare, sweep
    from hatdfed.sweeps.load import load
    from hatdfed.sweeps.sweep import SweepResult

__all__ = [
    "METHODS",
    "Callback",
    "Comparison",
    "Config",
    "RunResult",
    "SweepResult",
    "__version__",
    "compare",
    "load",
    "resolve",
    "resume",
    "run",
    "sweep",
]

# Loaded when first used: a coordinator imports parts of this package on machines that have no torch, and a wrong name
# is answered before torch is imported.
_HOMES = {
    "METHODS": "hatdfed.setup.methods",
    "Callback": "hatdfed.runs.callbacks",
    "Comparison": "hatdfed.runs.statistics",
    "Config": "hatdfed.setup.config",
    "RunResult": "hatdfed.runs.result",
    "SweepResult": "hatdfed.sweeps.sweep",
    "compare": "hatdfed.sweeps.calls",
    "load": "hatdfed.sweeps.load",
    "resolve": "hatdfed.setup.layers",
    "resume": "hatdfed.runs.calls",
    "run": "hatdfed.runs.calls",
    "sweep": "hatdfed.sweeps.calls",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hatdfed' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
