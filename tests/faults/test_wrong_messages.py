"""Rows D1 to D4 and X2 of the fault matrix, with real connections: what a client with a good certificate may try."""

import asyncio
import json
import resource

import numpy as np
from tests.deploy.deployment import Deployment, settings
from tests.deploy.gates import Gate
from tests.deploy.hostile import sealed
from tests.deploy.test_messages import SHORT, Attacker

from hatdfed.deploy import history
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.testing.promises import assert_promises

MEGABYTE = 1024  # in the units of `ru_maxrss`


def make_long_header(tensors):
    """A message of many tensors of no numbers."""
    text = {f"t{n}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(tensors)}
    fields = {"run": "r", "round": "1", "sender": "2", "num_samples": "1", "mass": "1.0", "codec": "float32"}
    header = json.dumps({"__metadata__": fields, **text}).encode()
    return sealed(len(header).to_bytes(8, "little") + header)


async def try_everything(folder):
    """While edge-2 is held in round 1 and edge-0 waits for its model, others send theirs, or one in its name."""
    events, gate = [], Gate(1)
    config = settings("full", codec="float32", rounds=3)
    with history.recorded(events.append):
        async with Deployment(folder, config, SHORT) as deployment:
            for name, more in (("edge-0", {}), ("edge-1", {}), ("edge-2", {"make_setup": gate})):
                started = deployment.start_edge(name, **more)
                await deployment.until(lambda started=started: started._handler is not None)
            mailbox = deployment.edges["edge-0"]._handler.mailbox
            await deployment.until(
                lambda: gate.is_reached(1) and mailbox.order.round == 1 and 1 in mailbox.received and mailbox._offer
            )
            attacker = Attacker(deployment, "edge-0")
            message, push = attacker.message, attacker.push
            good = np.zeros(attacker.num_params, np.float32)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            answers = {
                "D1": set(await asyncio.gather(*(push("edge-1", message(good, sender=1)) for _ in range(3)))),
                "D2 last round": await push("edge-2", message(good, t=0), t=0),
                "D2 other run": await push("edge-2", message(good), run="another"),
                "D4": await push("edge-9", message(good, sender=9)),
                "X2 oversize": await push("edge-2", b"x", size=1 << 40),
                "X2 long header": await push("edge-2", make_long_header(500)),
                "X2 wrong shape": await push("edge-2", message(good[:-1])),
                "X2 wrong dtype": await push("edge-2", message(good.astype(np.float64))),
            }
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            repeat_orders(deployment.process.hub)
            gate.open()
            await deployment.run
            links = deployment.process.folder.read().records("links")
    assert_promises(events, slack=3.0)
    return answers, grown, links


def repeat_orders(hub):
    """D3: the order of this round once more, and one of the round before."""
    again = pb.RoundOrder(round=hub.open_round.plan.t, seconds=5.0)
    for index in range(3):
        hub.send_order(index, pb.Order(epoch=hub.epoch, round=again))
        hub.send_order(index, pb.Order(epoch=hub.epoch, round=pb.RoundOrder(round=0, seconds=5.0)))


def test_wrong_messages_are_refused_in_a_word_and_change_nothing(play, tmp_path, one_thread, eager):
    answers, grown, links = play(try_everything(tmp_path))
    # Of several transfers at once, the last is told that the model is there; the others may be replaced by it before.
    assert "duplicate" in answers["D1"]
    assert answers.pop("D1") <= {"duplicate", "replaced"}
    assert answers == {
        "D2 last round": "late",
        "D2 other run": "foreign",
        "D4": "not-a-neighbour",
        "X2 oversize": "too-long",
        "X2 long header": "foreign",
        "X2 wrong shape": "wrong-shape",
        "X2 wrong dtype": "too-long",
    }
    assert grown < 50 * MEGABYTE
    assert all(link["delivered"] for link in links)
    assert {link["t"] for link in links} == {0, 1, 2}
