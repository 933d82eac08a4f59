"""Executors by name; the one that needs Ray is imported only where it is asked for."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from hatdfed.errors import ConfigError, MissingDependencyError, require_one_of
from hatdfed.sweeps.executors.local import Executor, LocalExecutor
from hatdfed.sweeps.retries import RETRIES

EXECUTORS = ("local", "ray")


def make_executor(name: str = "local", *, jobs: int | None = None, retries: int = RETRIES, **ray: Any) -> Executor:
    """`ray` are the settings of a cluster: address, cpus_per_batch, gpus_per_batch; those that are None are not set."""
    require_one_of("--executor", name, EXECUTORS)
    given = {key: value for key, value in ray.items() if value is not None}
    if name == "local":
        if given:
            option = next(iter(given)).replace("_", "-")
            raise ConfigError(f"--{option} is for a cluster. Use --executor ray, or leave it out.")
        return LocalExecutor(jobs, retries)
    if jobs is not None:
        raise ConfigError("--jobs counts processes of this machine. With --executor ray, use --cpus-per-batch.")
    if find_spec("ray") is None:
        raise MissingDependencyError("--executor ray needs Ray, which is not installed: pip install 'hatdfed[ray]'.")
    from hatdfed.sweeps.executors.ray import RayExecutor

    executor: Executor = RayExecutor(retries=retries, **given)
    return executor
