"""A connection to Ray: a cluster of its own on this machine, or one that runs already."""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from hatdfed.cluster.knock import knock
from hatdfed.errors import ClusterError, ConfigError, MissingDependencyError

_log = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 512 << 20  # of a cluster of our own; Ray would take a third of the memory
ADDRESS_VARIABLE = "RAY_ADDRESS"


# Ray's servers inherit these. The second: a task that asks for no GPU need not have them hidden, of which Ray warns.
_SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def import_ray() -> Any:
    """Ray, or the sentence that says how to get it."""
    try:
        import ray
    except ImportError:
        raise MissingDependencyError("Ray is not installed here: pip install 'hatdfed[ray]'.") from None
    return ray


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Ray, connected to the cluster at `address` or RAY_ADDRESS; else to one of our own, which ends with the block."""
    address = address or os.environ.get(ADDRESS_VARIABLE) or None
    with _environment({**_SETTINGS, **_authentication(is_own=address is None)}):  # Ray reads it when it is imported
        ray = import_ray()
        if ray.is_initialized():
            yield ray  # somebody has called ray.init, and will end it
            return
        _read_settings_again()
        _keep_off_stdout()
        scratch = tempfile.mkdtemp(prefix="hatray-")
        try:
            if address is None:
                _start(ray, scratch)
            else:
                _join(ray, address)
            yield ray
        finally:
            ray.shutdown()
            shutil.rmtree(scratch, ignore_errors=True)


def _read_settings_again() -> None:
    """Whoever has imported Ray before may have done so with another token, or none."""
    core: Any = import_module("ray._raylet")
    core.Config.initialize("")
    core.AuthenticationTokenLoader.instance().reset_cache()


def _keep_off_stdout() -> None:
    """Ray prints what it thinks of lost machines among our results, whatever it is told about logs."""
    worker: Any = import_module("ray._private.worker")
    worker.print_to_stdstream = lambda data, **_: _log.info("Ray: %s", " ".join(map(str, data.get("lines", ()))))


def _start(ray: Any, scratch: str) -> None:
    try:
        ray.init(
            address="local",
            num_cpus=len(os.sched_getaffinity(0)),  # in a container Ray counts the cores of the machine
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            _temp_dir=scratch,
        )
    except (RuntimeError, OSError, ValueError, TimeoutError, ray.exceptions.RayError) as error:
        raise ClusterError(f"Ray cannot be started on this machine ({_first_line(error)}).") from None


def _join(ray: Any, address: str) -> None:
    if "://" in address:
        raise ConfigError(
            f"The address of the Ray cluster is {address!r}, but must be HOST:PORT or auto. "
            "Run hatdfed on a machine of the cluster; any of them will do."
        )
    knock(address)
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (RuntimeError, OSError, ValueError, TimeoutError, ray.exceptions.RayError) as error:
        raise ClusterError(f"The Ray cluster at {address} cannot be joined ({_first_line(error)}).") from None


def _authentication(*, is_own: bool) -> Mapping[str, str]:
    """What Ray must be told: nothing where the user has told it, a secret of this process for a cluster of our own."""
    if "RAY_AUTH_MODE" in os.environ:
        return {}
    if "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ:
        return {"RAY_AUTH_MODE": "token"}
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(_own_token())} if is_own else {}


@lru_cache(maxsize=1)
def _own_token() -> Path:
    """One for the whole process, which nobody else can read."""
    folder = Path(tempfile.mkdtemp(prefix="hatdfed-token-"))  # for its owner only, as mkdtemp makes them
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    token = folder / "token"
    with os.fdopen(os.open(token, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    return token


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                with suppress(KeyError):
                    del os.environ[name]
            else:
                os.environ[name] = value


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300].rstrip(".")
