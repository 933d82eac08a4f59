"""The dashboard behind a port."""

from __future__ import annotations

import socket
from contextlib import suppress

import uvicorn
from fastapi import FastAPI

from hatdfed.errors import ConfigError


def listen(host: str, port: int) -> socket.socket:
    """An open port; taken ones and hosts that are not ours are refused in a sentence."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host.strip("[]"), port))
        listener.listen(128)  # whoever reads the address may come at once
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"Nobody can listen at {host}:{port} ({error.strerror}). Choose another --port or --host."
        ) from None
    return listener


def serve(app: FastAPI, listener: socket.socket) -> None:
    """Answer until Ctrl-C; open streams are not waited for."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        limit_concurrency=200,
        proxy_headers=False,
    )
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
