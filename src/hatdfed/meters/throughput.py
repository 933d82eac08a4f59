"""The rate at which one machine sends to another, over a plain TCP connection that carries nothing but zeros."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from hatdfed.errors import ConfigError, EnergyMeterError

SECONDS = 3.0
_PATIENCE = 10.0
_CHUNK = bytes(1 << 16)
_MOST_BYTES = 1 << 33
_BITS_IN_MEGABIT = 1e6


def measure_throughput(address: str, seconds: float = SECONDS) -> float:
    """Send for a while to `serve_throughput` at the address; returns Mbit/s, counted until all has arrived."""
    try:
        with socket.create_connection(split_address(address), timeout=_PATIENCE) as connection:
            began, sent = time.perf_counter(), 0
            while time.perf_counter() - began < seconds and sent < _MOST_BYTES:
                connection.sendall(_CHUNK)
                sent += len(_CHUNK)
            connection.shutdown(socket.SHUT_WR)
            arrived = connection.recv(32)
            took = time.perf_counter() - began
    except OSError as error:
        raise EnergyMeterError(
            f"The rate to {address} cannot be measured ({error}). Start `hatdfed calibrate --serve` there."
        ) from None
    if arrived != str(sent).encode():
        raise EnergyMeterError(f"Of {sent} bytes to {address}, not all arrived. Measure again.")
    return 8 * sent / took / _BITS_IN_MEGABIT


def serve_throughput(address: str, on_ready: Callable[[int], None], *, connections: int | None = None) -> None:
    """Take in what others send and tell them how much it was; one at a time, for ever or for so many connections."""
    host, port = split_address(address)
    try:
        listener = socket.create_server((host, port))
    except OSError as error:
        raise EnergyMeterError(f"{address} cannot be listened on ({error}). Choose another one.") from None
    with listener:
        on_ready(listener.getsockname()[1])
        while connections is None or connections > 0:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(_PATIENCE)
                _take_in(connection)
            connections = None if connections is None else connections - 1


def _take_in(connection: socket.socket) -> None:
    """Read until the sender has no more, or sends too much or nothing for too long."""
    taken = 0
    try:
        while taken <= _MOST_BYTES and (data := connection.recv(len(_CHUNK))):
            taken += len(data)
        connection.sendall(str(taken).encode())
    except OSError:
        return  # the sender is gone: it will say so


def split_address(address: str) -> tuple[str, int]:
    """Host and port."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{address!r} is not an address. Write HOST:PORT, such as 192.168.1.5:7070.")
    return host.strip("[]"), int(port)
