"""The two settings that experiments outside Table 1 are played in: its first and its last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HARD: Mapping[str, Any] = {"label_concentration": 0.3, "device_online_probability": 0.5}  # the default setting
EASY: Mapping[str, Any] = {"label_concentration": 0.7, "device_online_probability": 0.9}
