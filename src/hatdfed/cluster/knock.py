"""Whether a Ray cluster answers, found out within seconds: Ray itself tries for minutes and may end the process.

So another process tries first. What it prints is read, and it is ended when its time is up.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

from hatdfed.errors import ClusterError, ConfigError

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
