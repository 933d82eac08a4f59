"""Machines of a test deployment: network namespaces with a switch between them, whose cables can be cut and slowed.

Everything is made in namespaces of our own; without root or `ip` all machines share loopback, and faults of the network
cannot be injected.
"""

import os
import shutil
import subprocess

_MTU_BYTES = 1600
_NOBODY = "02:00:00:00:00:99"  # a hardware address that no port of the switch knows


class NotPossibleError(Exception):
    """A fault that cannot be injected on this machine."""


def _run(*words, check=True):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    if check and done.returncode:
        raise NotPossibleError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return done


class Machines:
    """Use as `with Machines(names) as machines`."""

    def __init__(self, names):
        self.names = list(names)
        self.has_network = os.geteuid() == 0 and shutil.which("ip") is not None
        self._prefix = f"hdf{os.getpid()}"
        self._switch = f"{self._prefix}-switch"

    def __enter__(self):
        if self.has_network:
            try:
                self._lay_cables()
            except NotPossibleError:
                self._remove()
                self.has_network = False
        return self

    def __exit__(self, *_):
        if self.has_network:
            self._remove()

    def address(self, name):
        return f"10.78.0.{10 + self.names.index(name)}" if self.has_network else "127.0.0.1"

    def command(self, name, *words):
        """For a process on this machine."""
        inside = ["ip", "netns", "exec", self._namespace(name)] if self.has_network else []
        return [*inside, *map(str, words)]

    # Faults.

    def pull_cable(self, name):
        self._require_network()
        _run("ip", "-n", self._switch, "link", "set", self._port(name), "down")

    def plug_cable(self, name):
        _run("ip", "-n", self._switch, "link", "set", self._port(name), "up")

    def slow_down(self, name, kbit_per_second):
        """Limit what a machine sends."""
        self._require_network()
        limits = ("rate", f"{kbit_per_second}kbit", "burst", 16 * _MTU_BYTES, "latency", "2s")
        _run("tc", "-n", self._namespace(name), "qdisc", "replace", "dev", "eth0", "root", "tbf", *limits)

    def speed_up(self, name):
        _run("tc", "-n", self._namespace(name), "qdisc", "del", "dev", "eth0", "root", check=False)

    def mute(self, name, towards):
        """Lose what one machine sends to another, without a word to either."""
        self._require_network()
        place = ("dev", "eth0", "lladdr", _NOBODY, "nud", "permanent")
        _run("ip", "-n", self._namespace(name), "neigh", "replace", self.address(towards), *place)

    def unmute(self, name, towards):
        _run("ip", "-n", self._namespace(name), "neigh", "del", self.address(towards), "dev", "eth0", check=False)

    def lose(self, name, percent):
        """Lose a share of the packets that a machine receives; 0 for none."""
        self._require_network()
        inside = self.command(name)
        if shutil.which("nft") is None:
            raise NotPossibleError("nft is not installed (Debian: nftables)")
        _run(*inside, "nft", "delete", "table", "ip", "faults", check=False)
        if percent:
            hook = "{ type filter hook input priority 0 ; }"
            _run(*inside, "nft", "add", "table", "ip", "faults")
            _run(*inside, "nft", "add", "chain", "ip", "faults", "in", hook)
            _run(*inside, "nft", *f"add rule ip faults in numgen random mod 100 < {percent} drop".split())

    # Cables.

    def _require_network(self):
        if not self.has_network:
            raise NotPossibleError("network namespaces need root and the program ip (Debian: iproute2)")

    def _namespace(self, name):
        return f"{self._prefix}-{self.names.index(name)}"

    def _port(self, name):
        return f"port{self.names.index(name)}"

    def _lay_cables(self):
        _run("ip", "netns", "add", self._switch)
        _run("ip", "-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", self._switch, "link", "set", "bridge", "up")
        for name in self.names:
            inside, port = self._namespace(name), self._port(name)
            _run("ip", "netns", "add", inside)
            _run("ip", "-n", inside, "link", "set", "lo", "up")
            ends = ("link", "add", port, "netns", self._switch, "type", "veth", "peer", "name", "eth0", "netns", inside)
            _run("ip", *ends)
            _run("ip", "-n", self._switch, "link", "set", port, "master", "bridge", "up")
            _run("ip", "-n", inside, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            _run("ip", "-n", inside, "link", "set", "eth0", "up")

    def _remove(self):
        for name in [*(self._namespace(each) for each in self.names), self._switch]:
            _run("ip", "netns", "del", name, check=False)
