"""What the coordinator says when a round closes and reports are missing."""

from types import SimpleNamespace

from tests.deploy.deployment import QUICK

from hatdfed.deploy.coordinator.conduct import RoundEvidence
from hatdfed.deploy.coordinator.edge_hub import EdgeHub
from hatdfed.deploy.coordinator.journal import Journal


class EmptyRound:
    """A round in which nobody of those who are waited for will report."""

    plan = None
    waiting_for = (0, 2)

    def open(self, *_):
        pass

    def make_evidence(self, _):
        return RoundEvidence(4, set(), {}, {})

    def undelivered(self):
        return []

    def close(self):
        return "closed"


def test_servers_that_a_round_closes_without_are_named(play, tmp_path, caplog, monkeypatch):
    journal = Journal(tmp_path / "journal.sqlite")
    hub = EdgeHub(journal, QUICK, 3, epoch=1, next_round=0)
    for name in ("edge-7", "edge-8", "edge-9"):
        hub.admit(name, "")
    hub.open_round = EmptyRound()
    monkeypatch.setattr(hub, "_send_round_orders", lambda plan: None)
    monkeypatch.setattr(hub, "_is_alive", lambda index: False)
    plan = SimpleNamespace(t=4, presence=None)
    assert play(hub.play(plan, SimpleNamespace(num_servers=3))) == "closed"
    journal.close()
    assert caplog.messages == ["round 4 closes without edge-7, edge-9"]
