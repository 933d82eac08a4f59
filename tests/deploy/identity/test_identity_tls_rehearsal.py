"""What an edge needs to find out why it is refused is in memory before it is."""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from hatdfed.deploy.identity.names import edge_id
from hatdfed.deploy.identity.tls_rehearsal import rehearse_tls

_MOST_KIB = 128
_HANDSHAKE = """
import re, ssl, sys
from pathlib import Path

from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.deploy.identity.join import make_verified_context
from hatdfed.deploy.identity.tls_rehearsal import rehearse_tls

def read_code():
    return int(re.search(r"RssFile:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

folder = IdentityFolder(Path(sys.argv[1]))
for _ in range(int(sys.argv[2])):
    assert rehearse_tls(folder)
before = read_code()
assert rehearse_tls(folder)
print(read_code() - before)
"""


def test_an_edge_connects_to_itself(identity):
    assert rehearse_tls(identity(edge_id("north")))


def test_an_edge_whose_certificate_has_expired_starts_all_the_same(identity):
    assert not rehearse_tls(identity(edge_id("north"), lifetime=timedelta(seconds=-1)))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc, as Linux has it")
def test_a_later_handshake_brings_no_more_code_into_memory(identity):
    folder = identity(edge_id("north")).path

    def count_kib(rehearsals):
        command = [sys.executable, "-c", _HANDSHAKE, str(folder), str(rehearsals)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert count_kib(rehearsals=0) > 2 * _MOST_KIB
    assert count_kib(rehearsals=1) < _MOST_KIB
