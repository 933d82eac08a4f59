"""What SQLite keeps in memory of a long run's records; in a process of its own, since it counts for all of them."""

import _sqlite3
import ctypes
import subprocess
import sys
import sysconfig

import pytest

_MOST_KIB = 64  # that it may grow by
_RUN = """
import ctypes, sys
import _sqlite3, hatdfed
from tests.small_runs import SMALL

count = ctypes.CDLL(_sqlite3.__file__).sqlite3_memory_used
count.restype = ctypes.c_int64
used = []
settings = {**SMALL, "servers": 5, "rounds": 200, "method": "rnd"}
hatdfed.run(**settings, out=sys.argv[1], on_round=lambda config, record: used.append(count()))
print((used[-1] - used[50]) // 1024)
"""


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(_sqlite3.__file__), "sqlite3_memory_used"),
    reason=f"this build of Python for {sysconfig.get_platform()} hides its SQLite",
)
def test_pages_of_earlier_rounds_are_not_kept(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(tmp_path / "run")], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < _MOST_KIB
