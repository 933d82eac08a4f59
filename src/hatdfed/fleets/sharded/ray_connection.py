"""A connection to Ray: a cluster of its own on this machine, or one that runs already."""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

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


DIAL_SECONDS = 5.0
KNOCK_SECONDS = 15.0
_WRONG_TOKEN = "InvalidAuthToken"  # noqa: S105 (no password: what Ray says of one)

_TRY = "import sys, ray; ray.init(sys.argv[1], log_to_driver=False, configure_logging=False); ray.nodes()"


def knock(address: str) -> None:
    """Return if the cluster at `address` lets this machine in; a sentence that says why not, if not."""
    if address != "auto":
        _dial(address)
    command = [sys.executable, "-c", _TRY, address]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    nowhere = subprocess.DEVNULL
    with subprocess.Popen(  # noqa: S603 (our own interpreter and our own text)
        command, env=environment, stdin=nowhere, stdout=nowhere, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as trying:
        late = threading.Timer(KNOCK_SECONDS, trying.kill)
        late.start()
        said = _words_of(trying)
        late.cancel()
    if trying.returncode != 0:
        raise ClusterError(reason(address, said))


def _words_of(trying: subprocess.Popen[str]) -> str:
    """What it says until it ends; a wrong token does not become right, so it is ended then."""
    said = ""
    for line in trying.stderr or ():
        said += line
        if _WRONG_TOKEN in line:
            trying.kill()
    return said


def _dial(address: str) -> None:
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdecimal()):
        raise ConfigError(f"The address of the Ray cluster is {address!r}, but must be HOST:PORT or auto.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=DIAL_SECONDS).close()
    except (OSError, OverflowError) as error:
        why = "no answer in time" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or error
        raise ClusterError(
            f"No Ray cluster can be reached at {address} ({why}). Check the address, and that `ray start --head` "
            "runs there."
        ) from None


def reason(address: str, said: str) -> str:
    """What Ray's many lines come to."""
    if _WRONG_TOKEN in said:
        return (
            f"The Ray cluster at {address} refuses this machine's token. Set RAY_AUTH_MODE=token and "
            "RAY_AUTH_TOKEN_PATH to the file with the token that the cluster was started with."
        )
    if "AuthenticationError" in said:
        return (
            f"The Ray cluster at {address} wants a token and none was found. Set RAY_AUTH_TOKEN_PATH to the file with "
            "the token that the cluster was started with."
        )
    if "Version mismatch" in said:
        versions = " ".join(said[said.rindex("Version mismatch") :].split())
        return f"The Ray cluster at {address} has other versions than this machine. {versions[:300]}"
    if address == "auto" and "Could not find any running Ray instance" in said:
        return "No Ray cluster runs on this machine. Start one with `ray start --head`, or leave the address out."
    if "GCS" in said or not said:
        return f"What answers at {address} is no Ray cluster, or it is too busy. Check the address."
    return f"The Ray cluster at {address} cannot be joined ({said.strip().splitlines()[-1][:300]})."
