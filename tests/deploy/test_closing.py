"""What the coordinator says when a round closes and reports are missing."""

from types import SimpleNamespace

from tests.deploy.deployment import QUICK

from hatdfed.deploy.coordinator.edge_hub import EdgeHub
from hatdfed.deploy.coordinator.journal import Journal


class EmptyHall:
    """A round in which nobody of those who are waited for will report."""

    plan = None
    waiting_for = (0, 2)

    def open(self, *_):
        pass

    def undelivered(self):
        return []

    def close(self):
        return "closed"


def test_servers_that_a_round_closes_without_are_named(play, tmp_path, caplog, monkeypatch):
    journal = Journal(tmp_path / "journal.sqlite")
    station = EdgeHub(journal, QUICK, 3, epoch=1, next_round=0)
    for name in ("edge-7", "edge-8", "edge-9"):
        station.admit(name, "")
    station.hall = EmptyHall()
    monkeypatch.setattr(station, "_order_round", lambda plan: None)
    monkeypatch.setattr(station, "_is_worth_waiting", lambda index: False)
    plan = SimpleNamespace(t=4, presence=None)
    assert play(station.play(plan, SimpleNamespace(num_servers=3))) == "closed"
    journal.close()
    assert caplog.messages == ["round 4 closes without edge-7, edge-9"]
