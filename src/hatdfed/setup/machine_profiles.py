"""Profiles of machines that servers can be: watts, speed and rates, each figure with how it is known and from where.

The profiles that come with hatdfed are in machine_profiles.yaml. A profile of one's own is a YAML file with one of
them, in which a figure may be a plain number.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

TRAINING_FLOPS = 3.0  # of a sample and pass, as a multiple of the forward FLOPs: the backward pass takes twice as many


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Figure(_Part):
    """A number and where it comes from."""

    value: Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
    how: Literal["measured", "data sheet", "derived", "not stated"] = "not stated"
    source: Annotated[str, Field(max_length=1000)] = ""


def _as_figure(given: Any) -> Any:
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    return {"value": given} if is_number else given


AnyFigure = Annotated[Figure, BeforeValidator(_as_figure)]


class MachineProfile(_Part):
    """One kind of machine; its speed is given by FLOPs, or measured with the network that is trained."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,63}$")]
    machine: Annotated[str, Field(max_length=1000)] = ""
    idle_watts: AnyFigure
    training_watts: AnyFigure
    training_gflops: AnyFigure | None = None
    sample_seconds: AnyFigure | None = None  # of one sample and pass; counts instead of `training_gflops`
    upload_mbit_per_second: AnyFigure  # from all devices of the server together
    uplink_mbit_per_second: AnyFigure  # to all receivers of a model together
    latency_seconds: AnyFigure

    @model_validator(mode="after")
    def _has_speed(self) -> MachineProfile:
        if self.training_gflops is None and self.sample_seconds is None:
            raise ValueError("have training_gflops or sample_seconds")
        return self

    def find_sample_seconds(self, forward_flops: float) -> float:
        """Seconds to train on one sample once, with a network of so many FLOPs a sample."""
        if self.sample_seconds is not None:
            return self.sample_seconds.value
        assert self.training_gflops is not None  # noqa: S101 (as `_has_speed` has seen)
        return TRAINING_FLOPS * forward_flops / (1e9 * self.training_gflops.value)

    def find_sample_joules(self, forward_flops: float) -> float:
        """Joules of the same."""
        return self.training_watts.value * self.find_sample_seconds(forward_flops)


@cache
def shipped_profiles() -> Mapping[str, MachineProfile]:
    """The profiles that come with hatdfed, by name."""
    text = resources.files("hatdfed.setup").joinpath("machine_profiles.yaml").read_text(encoding="utf-8")
    profiles = [MachineProfile.model_validate(each) for each in yaml.safe_load(text)]
    return {profile.name: profile for profile in profiles}
