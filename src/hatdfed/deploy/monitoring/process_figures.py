"""Figures of a process: memory, files, threads, CPU, version, certificates, disk. Those of /proc are Linux only."""

from __future__ import annotations

import os
import resource
import shutil
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from hatdfed.deploy.identity.certificates import certificate_from_pem
from hatdfed.deploy.monitoring.metrics import Figures
from hatdfed.deploy.transport.endpoints import Endpoints
from hatdfed.errors import IdentityError
from hatdfed.version import __version__

_PROC = Path("/proc/self")


@dataclass(frozen=True)
class ProcessFigures:
    """Reads the figures of this process anew at every call."""

    endpoints: Endpoints
    folder: Path  # of its state
    started_at: float = field(default_factory=time.time)

    def read(self) -> Figures:
        """Return a value for every metric of `PROCESS_METRICS`; None where it is unknown."""
        node, identity = self.endpoints.node, self.endpoints.identity
        return {
            "hatdfed_build_info": {(__version__, node.role, node.name): 1.0},
            "hatdfed_certificate_expiry_timestamp_seconds": None if identity is None else _expiry(identity.cert_file),
            "hatdfed_authority_expiry_timestamp_seconds": None if identity is None else _expiry(identity.ca_file),
            "hatdfed_disk_free_bytes": _free_bytes(self.folder),
            "process_start_time_seconds": self.started_at,
            "process_cpu_seconds_total": time.process_time(),
            "process_resident_memory_bytes": _resident_bytes(),
            "process_open_fds": _count_files(),
            "process_max_fds": float(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
            "process_threads": _count_threads(),
        }


def _expiry(file: Path) -> float | None:
    with suppress(OSError, IdentityError):
        expires: datetime = certificate_from_pem(file.read_bytes(), str(file)).not_valid_after_utc
        return expires.timestamp()
    return None


def _free_bytes(folder: Path) -> float | None:
    with suppress(OSError):
        return float(shutil.disk_usage(folder).free)
    return None


def _resident_bytes() -> float | None:
    with suppress(OSError):
        pages = (_PROC / "statm").read_text().split()[1]
        return float(int(pages) * os.sysconf("SC_PAGE_SIZE"))
    return None


def _count_files() -> float | None:
    with suppress(OSError):
        return float(len(os.listdir(_PROC / "fd")))  # noqa: PTH208 (a count needs no paths)
    return None


def _count_threads() -> float:
    """Count all threads, those of libraries included where the system tells."""
    with suppress(OSError):
        return float(len(os.listdir(_PROC / "task")))  # noqa: PTH208
    return float(threading.active_count())
