"""Models that are late, early, doubled, damaged or from somebody else: refused in a word, counted, and without harm."""

import os
import pickle  # noqa: TID251 (to be refused)
import subprocess
import sys
from pathlib import Path

import numpy as np
from tests.deploy.deployment import QUICK, Deployment, settings
from tests.deploy.gates import Gate

from hatdfed.deploy.identity.names import edge_id
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.protocol.hatdfed_pb2_grpc import PeerStub
from hatdfed.deploy.transport.frames import split_into_frames
from hatdfed.server.message import Message, pack

ROOT = Path(__file__).parents[2]
SHORT = QUICK.model_copy(update={"idle_seconds": 0.5, "round_seconds": 60.0})


class Attacker:
    """Pushes to one edge of a deployment under a name of its choice."""

    def __init__(self, deployment, victim):
        self._deployment, self._victim = deployment, victim
        mailbox = deployment.edges[victim]._handler.mailbox
        self.run, self.codec, self.num_params = (
            mailbox.run,
            mailbox.message_context.codec,
            mailbox.program.learner.num_params,
        )

    def message(self, model, t=1, sender=2, run=None):
        return pack(Message(run or self.run, t, sender, 10, 1.0, self.codec, {"model": model}))

    async def push(self, name, data, *, t=1, run=None, size=None):
        member = self._deployment.process.hub.membership.find(self._victim)
        async with self._deployment.endpoints(name).open_channel(member.address, edge_id(self._victim)) as channel:
            parcel = pb.Parcel(run=run or self.run, round=t, sender=0, size=len(data) if size is None else size)
            answer = await PeerStub(channel).Push(split_into_frames(parcel, [data]), timeout=10)
            return answer.reason or "taken"


async def attack(folder):
    config, gate = settings("full", codec="float32"), Gate(1)
    async with Deployment(folder, config, SHORT) as deployment:
        for name, more in (("edge-0", {}), ("edge-1", {}), ("edge-2", {"make_setup": gate})):
            started = deployment.start_edge(name, **more)
            await deployment.until(lambda started=started: started._handler is not None)
        await deployment.until(lambda: gate.is_reached(1))
        runner = deployment.edges["edge-0"]._handler.runner
        await deployment.until(lambda: 1 in runner._mailbox.received and runner._mailbox.order.round == 1)
        before = runner.server.params.clone()
        attacker = Attacker(deployment, "edge-0")
        good = np.zeros(attacker.num_params, np.float32)
        message, push = attacker.message, attacker.push
        reasons = {
            "stranger": await push("edge-9", message(good, sender=9)),
            "other run": await push("edge-2", message(good), run="another"),
            "other run inside": await push("edge-2", message(good, run="another")),
            "other sender inside": await push("edge-2", message(good, sender=1)),
            "other round inside": await push("edge-2", message(good, t=0)),
            "last round": await push("edge-2", message(good, t=0), t=0),
            "far round": await push("edge-2", message(good, t=7), t=7),
            "twice": await push("edge-1", message(good, sender=1)),
            "short model": await push("edge-2", message(good[:-1])),
            "other numbers": await push("edge-2", message(good.astype(np.int32))),
            "no number": await push("edge-2", message(np.full_like(good, np.nan))),
            "damaged": await push("edge-2", message(good)[:-1] + b"!"),
            "truncated": await push("edge-2", message(good)[:-100], size=len(message(good))),
            "more than said": await push("edge-2", message(good), size=100),
            "too long": await push("edge-2", b"x", size=1 << 40),
            "pickle": await push("edge-2", pickle.dumps([1, 2, 3])),
        }
        unchanged = bool((runner.server.params == before).all()) and set(runner._mailbox.received) == {1}
        gate.open()
        await deployment.run
        return reasons, unchanged, deployment.status["refused"], deployment.process.folder.read().records("links")


def test_what_is_no_model_of_this_round_is_refused_and_counted(play, tmp_path, one_thread):
    reasons, unchanged, counted, links = play(attack(tmp_path))
    assert reasons == {
        "stranger": "not-a-neighbour",
        "other run": "foreign",
        "other run inside": "foreign",
        "other sender inside": "foreign",
        "other round inside": "foreign",
        "last round": "late",
        "far round": "early",
        "twice": "duplicate",
        "short model": "wrong-shape",
        "other numbers": "wrong-shape",
        "no number": "not-finite",
        "damaged": "damaged",
        "truncated": "cut-short",
        "more than said": "too-long",
        "too long": "too-long",
        "pickle": "not-a-message",
    }
    assert unchanged
    for reason in reasons.values():
        assert counted[reason] >= sum(other == reason for other in reasons.values())
    assert len(links) == 24
    assert all(row["delivered"] for row in links), "the true models were taken all the same"


def outcomes(t, senders):
    """Reports of server 0 that cannot be."""
    good = [pb.Slot(server=0, importance=0.5), *(pb.Slot(server=s, importance=0.25) for s in senders)]
    fine = {"round": t, "accuracy": 0.5, "num_samples": 10, "devices_online": 3, "slots": good}
    return {
        "too good": pb.Outcome(**{**fine, "accuracy": 2.0}),
        "no number": pb.Outcome(**{**fine, "accuracy": float("nan")}),
        "too many": pb.Outcome(**{**fine, "num_samples": 10**12}),
        "too few": pb.Outcome(**{**fine, "num_samples": -1}),
        "unknown slot": pb.Outcome(**{**fine, "slots": [good[0], pb.Slot(server=77, importance=0.5)]}),
        "heavy": pb.Outcome(**{**fine, "slots": [pb.Slot(server=0, importance=50.0)]}),
        "negative": pb.Outcome(**{**fine, "slots": [pb.Slot(server=0, importance=-0.1)]}),
        "many scores": pb.Outcome(**{**fine, "slots": [pb.Slot(server=0, scores={f"s{n}": 1.0 for n in range(99)})]}),
        "long score": pb.Outcome(**{**fine, "slots": [pb.Slot(server=0, scores={"x" * 5000: 1.0})]}),
        "sent to nobody": pb.Outcome(**fine, sent=[pb.Sent(receiver=77, share=1.0)]),
        "sent too much": pb.Outcome(**fine, sent=[pb.Sent(receiver=1, share=1e9)]),
    }


async def bad_reports(folder):
    config, gate = settings("full"), Gate(1)
    async with Deployment(folder, config, SHORT) as deployment:
        await deployment.start_edges(3, make_setup=gate)
        await deployment.until(lambda: gate.is_reached(1))
        hub, journal = deployment.process.hub, deployment.process._journal
        before = journal._fetch_all("SELECT * FROM states")
        words = pb.Outcome(round=1, refused={"not a word": 3, "x" * 99: 1, "late": -5})
        answers = {}
        for name, outcome in outcomes(1, [1, 2]).items():
            answers[name] = hub.open_round.take(0, outcome).reason
            hub.open_round._rejected.clear()  # or the next one would not be read
        after = journal._fetch_all("SELECT * FROM states")
        hub.take_report(hub.membership.get(0), words)
        gate.open()
        await deployment.run
        return (
            answers,
            before == after,
            deployment.status,
            deployment.process.folder.read().records("servers"),
        )


def test_reports_that_cannot_be_are_refused_and_teach_nothing(play, tmp_path, one_thread):
    answers, unchanged, status, servers = play(bad_reports(tmp_path))
    counted = status["refused"]
    assert set(answers.values()) == {"bad-report"}
    assert unchanged
    assert counted["bad-report"] == len(answers) + 1
    assert set(counted) <= {"bad-report", "late"}, "words that are none are not counted"
    assert {row["server"] for row in servers if row["t"] == 2} == {1, 2}, "who was caught is not believed any more"
    caught = [server["caught"] for server in status["servers"]]
    assert [each and each["round"] for each in caught] == [1, None, None]


def test_a_deployment_leaves_no_task_behind(tmp_path):
    """In a process of its own: tests that kill a coordinator leave tasks in the event loop that all tests share."""
    command = [sys.executable, "-m", "tests.deploy.leftover_tasks", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert ended.stdout.splitlines() == ["done"], ended.stderr
