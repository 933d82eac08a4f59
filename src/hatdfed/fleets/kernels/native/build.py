"""Compiles the C code for one stage's shape and loads it; compiled code is kept in the user's cache folder.

Nothing here is fatal: without a compiler, or with HATDFED_NATIVE=0 in the environment, the answer is None.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import platformdirs

from hatdfed.fleets.kernels.torch_stage import StageShape

# In this folder; the first includes the others.
_STAGE = ("stage.c", "forward.h", "backward.h", "winograd.h", "tiles.h", "work.h")
_VECTORS = ("vectors.c", "work.h")
# Predictive commoning keeps pixels in registers that the sums need: 3 channels would take 1.5 times as long.
_FLAGS = ("-O3", "-fno-math-errno", "-fno-predictive-commoning", "-fPIC", "-shared")
_TUNING = (("-march=native",), ())  # some compilers and machines know no "native"
_COMPILE_SECONDS = 60.0


def stage_libraries(shapes: Sequence[StageShape]) -> list[ctypes.CDLL] | None:
    """The compiled code of each stage, or None if any cannot be had."""
    macros = [[f"-D{name.upper()}={value}" for name, value in shape._asdict().items()] for shape in shapes]
    return _libraries(_STAGE, macros)


def vector_library() -> ctypes.CDLL | None:
    """The compiled code of `vectors.c`, or None."""
    libraries = _libraries(_VECTORS, [[]])
    return None if libraries is None else libraries[0]


def _libraries(sources: Sequence[str], macros: Sequence[Sequence[str]]) -> list[ctypes.CDLL] | None:
    compiler = _compiler()
    if compiler is None or os.environ.get("HATDFED_NATIVE") == "0":
        return None
    try:
        with ThreadPoolExecutor() as pool:  # one compiler process each
            libraries = list(pool.map(functools.partial(_library, compiler, sources), macros))
    except (OSError, subprocess.SubprocessError):
        return None
    found = [library for library in libraries if library is not None]
    return found if len(found) == len(macros) else None


def _compiler() -> tuple[str, ...] | None:
    """The command that compiles C: $CC, which may come with arguments, or whatever is there."""
    for candidate in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        command = shlex.split(candidate)
        path = shutil.which(command[0]) if command else None
        if path:
            return (path, *command[1:])
    return None


def _library(compiler: tuple[str, ...], sources: Sequence[str], macros: Sequence[str]) -> ctypes.CDLL | None:
    for tuning in _TUNING:
        command = (*compiler, *_FLAGS, *tuning, *macros)
        library = _load_cached(command, sources) if _own_folder(cache_folder()) else _temporary(command, sources)
        if library is not None:
            return library
    return None


def cache_folder() -> Path:
    """Where compiled code is kept."""
    return platformdirs.user_cache_path("hatdfed") / "native"


def _own_folder(folder: Path) -> bool:
    """Makes the folder if need be; False if others could put code there or it cannot be written to."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return False
    private = status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and private and os.access(folder, os.W_OK)


def _load_cached(command: tuple[str, ...], sources: Sequence[str]) -> ctypes.CDLL | None:
    path = cache_folder() / f"{_fingerprint(command, sources)}.so"
    if _own_file(path):
        with contextlib.suppress(OSError):  # cut short by a full disk or a power cut: made again
            return ctypes.CDLL(str(path))
    # Another process may do the same at this moment: whoever renames last wins, both files are whole.
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        if not _compile(command, sources, made):
            return None
        made.chmod(0o700)  # whatever the umask is
        made.replace(path)
    return ctypes.CDLL(str(path))


def _temporary(command: tuple[str, ...], sources: Sequence[str]) -> ctypes.CDLL | None:
    """Compiles for this process only; a loaded file can be deleted."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stage.so"
        return ctypes.CDLL(str(path)) if _compile(command, sources, path) else None


def _own_file(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    private = status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISREG(status.st_mode) and private


def _compile(command: tuple[str, ...], sources: Sequence[str], target: Path) -> bool:
    source = Path(__file__).parent / sources[0]
    return _run((*command, str(source), "-lm", "-o", str(target))) is not None


def _run(command: tuple[str, ...]) -> str | None:
    """What a command prints, None if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False)  # noqa: S603
    return done.stdout if done.returncode == 0 else None


def _fingerprint(command: tuple[str, ...], sources: Sequence[str]) -> str:
    """Names the file: other code, flags, compiler or CPU, other name."""
    digest = hashlib.sha256("\0".join(command).encode())
    digest.update((_compiler_version(command[0]) + _cpu()).encode())
    for name in sources:
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()[:32]


@functools.cache
def _compiler_version(path: str) -> str:
    return _run((path, "--version")) or ""


@functools.cache
def _cpu() -> str:
    """Model and instruction sets, which -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    telling = ("model name", "flags", "CPU part", "Features")
    return "\n".join(sorted({line for line in lines if line.startswith(telling)}))
