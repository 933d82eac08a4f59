"""Training that stops where a test wants it to."""

import threading

from hatdfed.deploy.edge.setup import make_edge_setup


class Gate:
    """Holds an edge at the beginning of some rounds until it is told to go on."""

    def __init__(self, *rounds):
        self._reached = {t: threading.Event() for t in rounds}
        self._open = {t: threading.Event() for t in rounds}

    def __call__(self, config, index):
        """A setup whose data come through the gate."""
        setup = make_edge_setup(config, index)
        return setup._replace(source=_Gated(setup.source, self))

    def is_reached(self, t):
        return self._reached[t].is_set()

    def open(self):
        for event in self._open.values():
            event.set()

    def release(self, t):
        self._open[t].set()

    def pass_through(self, t):
        if t in self._open:
            self._reached[t].set()
            self._open[t].wait(30)


class _Gated:
    def __init__(self, source, gate):
        self._source, self._gate = source, gate

    def __getattr__(self, name):
        return getattr(self._source, name)

    def work(self, t, effort=None):
        self._gate.pass_through(t)
        return self._source.work(t, effort)
