"""Training that stops where a test wants it to."""

import threading

from hatdfed.node.outfit import simulated_outfit


class Gate:
    """Holds an edge at the beginning of a round until it is opened."""

    def __init__(self, t):
        self.t = t
        self.reached = threading.Event()
        self.open = threading.Event()

    def __call__(self, config, index):
        """An outfit whose data come through the gate."""
        outfit = simulated_outfit(config, index)
        return outfit._replace(source=_Gated(outfit.source, self))


class _Gated:
    def __init__(self, source, gate):
        self._source, self._gate = source, gate

    def __getattr__(self, name):
        return getattr(self._source, name)

    def work(self, t):
        if t == self._gate.t:
            self._gate.reached.set()
            self._gate.open.wait(30)
        return self._source.work(t)
