"""What processes that run for days do not keep; in processes of their own, whose settings are changed."""

import platform
import subprocess
import sys

import pytest

from hatdfed.cli.app import start

torch = pytest.importorskip("torch")

_LENGTHS = 20  # of batches
_FEW_KERNELS = "from hatdfed.runs.process_memory import keep_few_kernels; keep_few_kernels()"
_TRAIN_TWICE = f"""
import torch

torch.set_num_threads(1)
network = torch.nn.Conv2d(3, 32, 5)
for time in range(2):
    print("time", time, flush=True)
    for length in range(1, {_LENGTHS} + 1):
        torch.autograd.grad(network(torch.zeros(length, 3, 14, 14)).sum(), list(network.parameters()))
"""
_COLLECT_OFTEN = "from hatdfed.runs.process_memory import collect_often; collect_often()"
_LIBRARIES = "import gc, torch; gc.collect()  # after which torch counts as old"
_OLD_CYCLE = """
import weakref

class Cycle:
    def __init__(self):
        self.itself = self

cycle = Cycle()
gc.collect(1)  # which it survives: now it is old
known = weakref.ref(cycle)
del cycle
new = [[] for _ in range(20_000)]
print(known() is None)
"""

_RETURN_MEMORY = "from hatdfed.runs.process_memory import return_freed_memory; assert return_freed_memory()"
_ALLOCATE_IN_THREADS = """
import ctypes
from hatdfed.deploy.threads import make_pool

library = ctypes.CDLL(None)  # which lets go of the interpreter's lock
pool = make_pool(4, "allocating")
list(pool.map(lambda _: [library.malloc(1000) for _ in range(1000)], range(4)))
"""
_COUNT_ARENAS = """
import tempfile

with tempfile.NamedTemporaryFile() as file:
    library.fopen.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(library.fopen(file.name.encode(), b"w"))
    library.malloc_info(0, stream)
    library.fclose(stream)
    print(open(file.name).read().count("<heap nr="))
"""
_NO_CACHES = "from hatdfed.runs.process_memory import keep_no_thread_caches; keep_no_thread_caches()"
_FREE_IN_THREADS = """
import ctypes
from hatdfed.deploy.threads import make_pool

class Figures(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.mallinfo2.restype = Figures
pool = make_pool(8, "freeing")

def allocate_and_free(_):
    pieces = [ctypes.c_void_p(library.malloc(size)) for size in range(24, 1000, 16) for _ in range(7)]
    for piece in pieces:
        library.free(piece)

before = library.mallinfo2().h  # what is in use
list(pool.map(allocate_and_free, range(8)))
print(library.mallinfo2().h - before)
"""


def run(*parts):
    code = "\n".join(parts)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch computes without oneDNN")
def test_kernels_for_batches_of_many_lengths_are_not_all_kept(monkeypatch):
    monkeypatch.setenv("ONEDNN_VERBOSE", "profile_create")
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)

    def count_compiled_again(*parts):
        return run(*parts).partition("time 1")[2].count("create:cache_miss")

    assert count_compiled_again(_TRAIN_TWICE) == 0
    assert count_compiled_again(_FEW_KERNELS, _TRAIN_TWICE) >= _LENGTHS


def test_the_user_decides_how_many_kernels_are_kept(monkeypatch):
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "7")
    shown = "import os; print(os.environ['ONEDNN_PRIMITIVE_CACHE_CAPACITY'])"
    assert run(_FEW_KERNELS, shown) == "7"


def test_a_cycle_that_dies_old_does_not_stay_for_long():
    assert run(_LIBRARIES, _OLD_CYCLE) == "False"
    assert run(_LIBRARIES, _COLLECT_OFTEN, _OLD_CYCLE) == "True"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="this C library has no arenas")
def test_threads_of_an_edge_allocate_from_one_arena():
    assert int(run(_ALLOCATE_IN_THREADS, _COUNT_ARENAS)) > 1
    assert int(run(_RETURN_MEMORY, _ALLOCATE_IN_THREADS, _COUNT_ARENAS)) == 1


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="this C library has no caches for threads")
def test_threads_keep_nothing_of_what_they_free(monkeypatch):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    assert int(run(_FREE_IN_THREADS)) > 2**17
    assert int(run(_NO_CACHES, _FREE_IN_THREADS)) < 2**15


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="this C library has no caches for threads")
def test_what_the_user_asks_of_the_c_library_stays(monkeypatch):
    shown = "import os; print(os.environ['GLIBC_TUNABLES'])"
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.perturb=0")
    assert run(_NO_CACHES, shown) == "glibc.malloc.perturb=0:glibc.malloc.tcache_count=0"
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=3")
    assert run(_NO_CACHES, shown) == "glibc.malloc.tcache_count=3"


@pytest.mark.parametrize(("command", "times"), [("coordinator", 1), ("edge", 1), ("relay", 1), ("methods", 0)])
def test_processes_that_run_for_days_begin_without_caches_for_threads(monkeypatch, command, times):
    calls = []
    monkeypatch.setattr("sys.argv", ["hatdfed", command, "--help"])
    monkeypatch.setattr("hatdfed.cli.app.keep_no_thread_caches", lambda: calls.append(command))
    with pytest.raises(SystemExit):
        start()
    assert len(calls) == times
