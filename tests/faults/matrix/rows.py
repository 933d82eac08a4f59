"""The rows of the fault matrix that need real processes: what is injected, and what was observed.

Each row is a function of a folder. It returns a sentence on what was observed, and raises an error if that is not what
was promised; the history of the run is checked afterwards.
"""

import contextlib
import re
import shutil
import signal
import sqlite3
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.alone import play_undisturbed
from tests.faults.matrix.cluster import DEPLOY, KILLED, Cluster, make_config
from tests.faults.matrix.machines import NotPossibleError

from hatdfed.deploy.coordinator.conduct import FIRST_ROUNDS
from hatdfed.deploy.failpoints import COORDINATOR_POINTS

ROUND, AWAY, IDLE = DEPLOY["round_seconds"], DEPLOY["away_seconds"], DEPLOY["idle_seconds"]
MANY = 10**6  # rounds: the run does not end by itself
BUSY = 6.0  # seconds that a busy machine may take on top of a limit


@dataclass(frozen=True)
class Row:
    """One row of the matrix."""

    name: str
    fault: str
    injected: str
    play: Callable[[Path], tuple[str, Cluster]]
    is_quick: bool = False  # part of `make faults`


ROWS: list[Row] = []


def row(name, fault, injected, *, quick=False):
    """Register a row."""

    def register(play):
        ROWS.append(Row(name, fault, injected, play, quick))
        return play

    return register


def require(is_so, sentence):
    if not is_so:
        raise AssertionError(sentence)


def drawn_links(cluster):
    plans = {event["round"]: event["links"] for event in cluster.events("plan")}
    return [sorted(map(tuple, plans[t])) for t in sorted(plans)]


def compare_with_undisturbed(cluster):
    expected, _ = play_undisturbed(cluster.config)
    equal = sum(one == other for one, other in zip(drawn_links(cluster), expected, strict=True))
    require(equal == len(expected), f"only {equal} of {len(expected)} topologies equal those of an undisturbed run")
    return f"all {equal} topologies equal those of an undisturbed run"


def seconds_between(one, other):
    return f"{other['at'] - one['at']:.1f} s"


# The coordinator.


@row("C1", "coordinator killed between rounds", "kill -9 after a commit, started again after 3 s", quick=True)
def coordinator_killed(folder):
    with Cluster(folder, make_config(rounds=10)) as cluster:
        cluster.start()
        cluster.until_event("state", round=3, seconds=120)
        cluster.kill("coordinator")
        time.sleep(3)
        cluster.start_coordinator()
        start = cluster.until_event("start", epoch=2)
        opened = cluster.until_event("open", after=start["at"])
        require(opened["at"] - start["at"] < 10 + BUSY, "edges did not come back in time")
        require(cluster.wait_for_end() == 0, "the run did not end well")
        return (
            f"next round {seconds_between(start, opened)} after the start; {compare_with_undisturbed(cluster)}",
            cluster,
        )


def coordinator_dies_at(folder, points):
    with Cluster(folder, make_config(rounds=len(points) + 3)) as cluster:
        cluster.start(failpoint=f"{points[0]}:2")
        for point in [*points[1:], None]:
            require(cluster.wait_for_end(seconds=120) == KILLED, "the coordinator did not reach the point")
            cluster.start_coordinator(point)
        require(cluster.wait_for_end() == 0, "the run did not end well")
        return f"died {len(points)} times; {compare_with_undisturbed(cluster)}", cluster


@row("C2a", "coordinator dies after the commit, before the broadcast", "failpoint after-plan-commit", quick=True)
def dies_after_commit(folder):
    return coordinator_dies_at(folder, ["after-plan-commit"])


@row("C2b", "coordinator dies in the middle of the broadcast", "failpoint half-announced", quick=True)
def dies_half_announced(folder):
    return coordinator_dies_at(folder, ["half-announced"])


@row("C2", "coordinator dies at every point of a round", f"{len(COORDINATOR_POINTS)} failpoints, one after the other")
def dies_everywhere(folder):
    return coordinator_dies_at(folder, COORDINATOR_POINTS)


@row("C3", "coordinator down for a while", "SIGSTOP for 30 s, then SIGCONT")
def coordinator_stopped(folder):
    with Cluster(folder, make_config(rounds=10)) as cluster:
        cluster.start()
        cluster.until_round(3)
        cluster.freeze("coordinator")
        time.sleep(30)
        require(all(cluster.processes[name].poll() is None for name in cluster.names), "an edge has ended")
        cluster.thaw("coordinator")
        began = cluster.events("thaw")[-1]
        opened = cluster.until_event("open", after=began["at"])
        require(cluster.wait_for_end() == 0, "the run did not end well")
        return f"edges waited; next round {seconds_between(began, opened)} after SIGCONT", cluster


@row("C4", "two coordinators on one journal", "SIGSTOP, a second process with the same --state, SIGCONT")
def two_coordinators(folder):
    with Cluster(folder, make_config(rounds=10)) as cluster:
        cluster.start()
        cluster.until_round(3)
        first = cluster.processes["coordinator"]
        cluster.freeze("coordinator")
        code = cluster.start_coordinator().wait(timeout=60)
        cluster.processes["coordinator"] = first
        cluster.thaw("coordinator")
        require(code == 2, f"the second coordinator ended with {code}")
        require("already runs" in cluster.log(), "the second coordinator did not say why")
        require(cluster.wait_for_end() == 0, "the first did not go on")
        return "the second is refused by the lock with code 2 and a sentence; the first goes on", cluster


@row("C5", "coordinator's disk is full", "state on a file system of 8 MB that is filled, then emptied", quick=True)
def coordinator_disk_full(folder):
    state = folder / "small-disk"
    with small_disk(state, "8m"), Cluster(folder, make_config(rounds=14), state=state / "run") as cluster:
        cluster.start()
        cluster.until_event("state", round=3, seconds=120)
        fill(state)
        code = cluster.wait_for_end(seconds=60)
        require(code == 3, f"the coordinator ended with {code}, not with 3, which supervisors start again")
        played = len(cluster.events("state"))
        (state / "filler").unlink()
        check_integrity(state / "run" / "journal.sqlite")
        cluster.start_coordinator()
        require(cluster.wait_for_end() == 0, "the run did not go on")
        return (
            f"code 3 and a sentence after {played - 1} rounds; journal intact; after space was freed "
            f"{compare_with_undisturbed(cluster)}"
        ), cluster


@row("C6", "journal corrupted at rest", "bytes in the middle of journal.sqlite changed while it is stopped")
def journal_corrupted(folder):
    with Cluster(folder, make_config(rounds=10)) as cluster:
        cluster.start()
        cluster.until_event("state", round=3, seconds=120)
        cluster.kill("coordinator")
        journal = cluster.state / "journal.sqlite"
        with contextlib.closing(sqlite3.connect(journal)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        data = bytearray(journal.read_bytes())
        for place in range(len(data) // 3, 2 * len(data) // 3):
            data[place] ^= 0x55
        journal.write_bytes(data)
        code = cluster.start_coordinator().wait(timeout=60)
        require(code not in (0, 3), f"the coordinator ended with {code}")
        require("journal.sqlite" in cluster.log(), "the damaged file is not named")
        return f"refused with code {code} and the name of the file; no new run is begun", cluster


# Edges.


@row("E1", "edge killed while it trains", "kill -9, started again after the round", quick=True)
def edge_killed(folder):
    with Cluster(folder, make_config("full", rounds=MANY), min_servers=3) as cluster:
        cluster.start()
        opened = cluster.until_round(4)
        victim = "edge-2"
        cluster.kill(victim)
        closed = cluster.until_event("close", round=4)
        require(closed["at"] - opened["at"] < ROUND + BUSY, "the round was held up")
        cluster.start_edge(victim)
        index = cluster.index(victim)
        loaded = cluster.until_event("load", after=closed["at"], node=index)
        require(loaded["source"] == "own", "it did not begin with its own model")
        again = cluster.until_event("report", after=loaded["at"], server=index, accepted=True)
        return (
            f"round closed after {seconds_between(opened, closed)} with {len(closed['reported'])} of 5; back with its "
            f"model before round {loaded['round']}, reports again in round {again['round']}"
        ), cluster


@row("E2", "edge killed in the middle of a send", "failpoint at half of the bytes", quick=True)
def killed_while_sending(folder):
    return edge_dies_at(folder, "half-sent:3", "in the middle of a send")


@row("E3", "edge killed when it has received a model", "failpoint after the last byte, before the check")
def killed_while_receiving(folder):
    return edge_dies_at(folder, "model-received:3", "with a received model")


@row("E7", "edge killed when it has merged", "failpoint before it saves")
def killed_while_merging(folder):
    return edge_dies_at(folder, "before-edge-commit:3", "with a merged model")


def edge_dies_at(folder, point, when):
    with Cluster(folder, make_config("full", rounds=MANY), min_servers=3) as cluster:
        cluster.start_coordinator()
        for name in cluster.names[:-1]:
            cluster.start_edge(name)
        victim = cluster.names[-1]
        cluster.until(lambda: cluster.events("open"), 120)
        before = {name: cluster.memory(name)["descriptors"] for name in cluster.names[:-1]}
        require(cluster.start_edge(victim, point).wait(timeout=120) == KILLED, "the point was not reached")
        died = time.monotonic()
        closed = cluster.until_event("close", after=died)
        require(closed["at"] - died < ROUND + BUSY, "the round was held up")
        cluster.start_edge(victim)
        index = cluster.index(victim)
        cluster.until_event("report", after=closed["at"], server=index, accepted=True)
        grown = max(cluster.memory(name)["descriptors"] - before[name] for name in cluster.names[:-1])
        require(grown < 20, f"{grown} descriptors more than before")
        left = [path.name for name in cluster.names for path in cluster.store(name).glob("*.tmp*")]
        require(not left, f"temporary files were left: {left}")
        return f"died {when}; the round closed {closed['at'] - died:.1f} s later; it takes part again", cluster


@row("E4", "an edge that dies again and again", "an edge dies in four rounds, one after the other")
def crash_loop(folder):
    with Cluster(folder, make_config("full", rounds=MANY), min_servers=3) as cluster:
        cluster.start_coordinator()
        victim = cluster.names[-1]
        for name in cluster.names:
            cluster.start_edge(name, "trained:2" if name == victim else None)
        for _ in range(3):
            require(cluster.wait_for_end(victim, 120) == KILLED, "it did not die")
            cluster.start_edge(victim, "trained:1")
        require(cluster.wait_for_end(victim, 120) == KILLED, "it did not die")
        cluster.start_edge(victim)
        restarted = time.monotonic()
        index = cluster.index(victim)
        cluster.until_event("report", after=restarted, server=index, accepted=True)
        longest = max(c["at"] - o["at"] for o, c in pairs_of_rounds(cluster))
        require(longest < ROUND + BUSY, "a round was held up")
        ends = [int(t) for t in re.findall(rf"{victim} takes no part until round (\d+)", cluster.log())]
        require(len(ends) == 2, f"it was in quarantine {len(ends)} times, not twice")
        rests = [range(end - FIRST_ROUNDS * 2**times, end) for times, end in enumerate(ends)]
        played = [event["round"] for event in cluster.events("plan") if index in event["active"]]
        require(not any(t in rest for t in played for rest in rests), "it took part while it was in quarantine")
        return (
            f"died 4 times; longest round {longest:.1f} s; takes no part for {len(rests[0])} rounds after its third "
            f"death and for {len(rests[1])} after its fourth, then takes part again"
        ), cluster


def pairs_of_rounds(cluster):
    """The events that open and close each round."""
    closed = {event["round"]: event for event in cluster.events("close")}
    opened = {event["round"]: event for event in cluster.events("open")}
    return [(opened[t], closed[t]) for t in sorted(closed)]


@row("E5", "all edges but one die", "kill -9 of four of five; started again after 10 s")
def all_but_one(folder):
    with Cluster(folder, make_config("full", rounds=MANY), min_servers=3) as cluster:
        cluster.start()
        cluster.until_round(3)
        for name in cluster.names[1:]:
            cluster.kill(name)
        killed = time.monotonic()  # the run waited for servers at its beginning as well
        paused = cluster.until_event("wait", after=killed, waits_for="servers: 1 of at least 3 are there")
        time.sleep(10)
        require(not [e for e in cluster.events("open") if e["at"] > paused["at"]], "a round began")
        for name in cluster.names[1:]:
            cluster.start_edge(name)
        opened = cluster.until_event("open", after=paused["at"])
        return f"paused for {seconds_between(paused, opened)}, told in the status; then went on", cluster


@row("E6", "edge's disk is full", "store on a file system of 16 MB that is filled before a save")
def edge_disk_full(folder):
    disk = folder / "stores" / "edge-1"
    with small_disk(disk, "16m"), Cluster(folder, make_config("full", rounds=MANY)) as cluster:
        cluster.start()
        cluster.until_event("state", round=2, seconds=120)
        fill(disk)
        index = cluster.index("edge-1")
        alarm = cluster.until_event("alarm", node=index)
        closed = cluster.until_event("close", after=alarm["at"])
        require(index in closed["reported"], "it no longer takes part")
        (disk / "filler").unlink()
        saved = cluster.until_event("commit", after=closed["at"], node=index)
        return (
            f"alarm and log; it goes on from memory; saves again in round {saved['round']} after space was freed",
            cluster,
        )


# Stragglers.


@row("S1", "a slow processor", "one edge gets about a tenth of its processor time (SIGSTOP and SIGCONT)")
def slow_processor(folder):
    with Cluster(folder, make_config("full", rounds=MANY), min_servers=3) as cluster:
        cluster.start()
        cluster.until_round(2)
        slow = cluster.processes["edge-3"]
        end = time.monotonic() + 30
        while time.monotonic() < end:
            for word, seconds in ((signal.SIGSTOP, 0.09), (signal.SIGCONT, 0.01)):
                slow.send_signal(word)
                time.sleep(seconds)
        longest = max(c["at"] - o["at"] for o, c in pairs_of_rounds(cluster))
        require(longest < ROUND + BUSY, "a round was held up")
        return f"longest round {longest:.1f} s; the rounds go on", cluster


@row("S2", "a slow link", "one edge sends at 200 kbit/s; a model has 0.5 MB, a round 10 s", quick=True)
def slow_link(folder):
    with Cluster(folder, make_config("full", rounds=MANY), min_servers=3) as cluster:
        cluster.start()
        cluster.until_event("state", round=2, seconds=120)
        cluster.machines.slow_down("edge-3", 200)
        index = cluster.index("edge-3")
        began = time.monotonic()
        closed = cluster.until_event("close", after=began + 5, seconds=60)
        first = closed["round"]
        sends = [e for e in cluster.events("send", node=index) if e["at"] > began and e["round"] == first]
        most = max((sum(e["receiver"] == r for e in sends) for r in range(5)), default=0)
        require(most <= 2, f"a model was sent {most} times to one receiver")
        cluster.machines.speed_up("edge-3")
        cluster.until_event("close", after=time.monotonic())
        longest = max(c["at"] - o["at"] for o, c in pairs_of_rounds(cluster))
        require(longest < ROUND + BUSY, "a round was held up")
        return f"cut at the end of the round, after {longest:.1f} s; at most {most} sends to one receiver", cluster


@row("S4", "a frozen edge", "SIGSTOP for 20 s, then SIGCONT")
def frozen_edge(folder):
    with Cluster(folder, make_config("full", rounds=MANY), min_servers=3) as cluster:
        cluster.start()
        cluster.until_round(3)
        index = cluster.index("edge-4")
        cluster.freeze("edge-4")
        frozen = cluster.events("freeze")[-1]
        closed = cluster.until_event("close", after=frozen["at"])
        time.sleep(20)
        cluster.thaw("edge-4")
        thawed = cluster.events("thaw")[-1]
        again = cluster.until_event("report", after=thawed["at"], server=index, accepted=True)
        require(closed["at"] - frozen["at"] < ROUND + BUSY, "the round was held up")
        later = seconds_between(thawed, again)
        return f"round closed after {seconds_between(frozen, closed)}; reports again {later} after SIGCONT", cluster


# Networks.


@row("N1", "one edge cut off", "its cable is pulled for 25 s", quick=True)
def cut_off(folder):
    with Cluster(folder, make_config("full", rounds=MANY), min_servers=3) as cluster:
        cluster.start()
        cluster.until_round(3)
        index = cluster.index("edge-1")
        cluster.machines.pull_cable("edge-1")
        pulled = time.monotonic()
        closed = cluster.until_event("close", after=pulled)
        without = cluster.until(lambda: any(index not in e["active"] for e in cluster.events("plan")), 60)
        time.sleep(max(0.0, pulled + 25 - time.monotonic()))
        cluster.machines.plug_cable("edge-1")
        plugged = time.monotonic()
        again = cluster.until_event("report", after=plugged, server=index, accepted=True, seconds=60)
        require(closed["at"] - pulled < ROUND + BUSY, "the round was held up")
        return (
            f"no round waits for it after {closed['at'] - pulled + max(0.0, without):.1f} s; reports again "
            f"{again['at'] - plugged:.1f} s after the cable is back"
        ), cluster


@row("N2", "one-way loss between two edges", "what one edge sends to another vanishes for 20 s")
def one_way(folder):
    with Cluster(folder, make_config("full", rounds=MANY), min_servers=3) as cluster:
        cluster.start()
        cluster.until_round(3)
        cluster.machines.mute("edge-0", "edge-1")
        began = time.monotonic()
        cluster.until(lambda: len([e for e in cluster.events("close") if e["at"] > began + 15]) >= 3, 90)
        longest = max(c["at"] - o["at"] for o, c in pairs_of_rounds(cluster) if o["at"] > began)
        pair = {cluster.index("edge-0"), cluster.index("edge-1")}
        last = cluster.events("plan")[-1]["links"]
        masked = not any(set(link) == pair for link in last)
        cluster.machines.unmute("edge-0", "edge-1")
        require(longest < ROUND + BUSY, "a round was held up")
        return f"longest round {longest:.1f} s; the pair gets {'no ' if masked else ''}links meanwhile", cluster


@row("N3", "split of 3 and 2", "two edges reach only each other for 20 s; the coordinator is with the other three")
def split(folder):
    with Cluster(folder, make_config("full", rounds=MANY), min_servers=3) as cluster:
        cluster.start()
        cluster.until_round(3)
        here, there = ["coordinator", *cluster.names[:3]], cluster.names[3:]
        both = [(a, b) for one in here for two in there for a, b in ((one, two), (two, one))]
        for one, two in both:
            cluster.machines.mute(one, two)
        began = time.monotonic()
        cluster.until(lambda: [e for e in cluster.events("close") if e["at"] > began and len(e["reported"]) == 3], 60)
        time.sleep(max(0.0, began + 20 - time.monotonic()))
        for one, two in both:
            cluster.machines.unmute(one, two)
        healed = time.monotonic()
        whole = cluster.until(
            lambda: [e for e in cluster.events("close") if e["at"] > healed and len(e["reported"]) == 5], 90
        )
        return f"three go on, two wait; all five report again {whole:.1f} s after healing", cluster


@row("N4", "5 % of packets lost", "every machine loses 5 % of what it receives")
def packet_loss(folder):
    with Cluster(folder, make_config("full", rounds=MANY)) as cluster:
        cluster.start()
        cluster.until_event("state", round=4, seconds=120)
        for name in cluster.machines.names:
            cluster.machines.lose(name, 5)
        cluster.until_event("state", round=12, seconds=120)
        times = [c["at"] - o["at"] for o, c in pairs_of_rounds(cluster)]
        clean, lossy = statistics.median(times[:4]), statistics.median(times[5:])
        require(max(times) < ROUND + BUSY, "a round was held up")
        return f"median round {clean:.2f} s without and {lossy:.2f} s with loss; all rounds were completed", cluster


@row("N7", "an edge with another address", "killed, its address changed, started again")
def moved(folder):
    with Cluster(folder, make_config("full", rounds=MANY), min_servers=3) as cluster:
        cluster.start()
        cluster.until_round(3)
        index = cluster.index("edge-2")
        cluster.kill("edge-2")
        inside = cluster.machines.command("edge-2")
        if not inside:
            raise NotPossibleError("without namespaces all edges have one address")
        old = cluster.machines.address("edge-2")
        subprocess.run([*inside, "ip", "addr", "del", f"{old}/24", "dev", "eth0"], check=True)
        subprocess.run([*inside, "ip", "addr", "add", "10.78.0.77/24", "dev", "eth0"], check=True)
        cluster.start_edge("edge-2")
        began = time.monotonic()
        again = cluster.until_event("report", after=began, server=index, accepted=True)
        received = cluster.until_event("receive", after=began, sender=index, seconds=30)
        return (
            f"reports again after {again['at'] - began:.1f} s; others have its models after "
            f"{received['at'] - began:.1f} s"
        ), cluster


# Disks.


@contextlib.contextmanager
def small_disk(folder, size):
    folder.mkdir(parents=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True)
    if done.returncode:
        raise NotPossibleError("a small file system cannot be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def fill(folder):
    with (folder / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def check_integrity(journal):
    copy = journal.with_name("copy.sqlite")
    shutil.copy(journal, copy)
    for more in ("-wal",):
        if journal.with_name(journal.name + more).exists():
            shutil.copy(journal.with_name(journal.name + more), copy.with_name(copy.name + more))
    with contextlib.closing(sqlite3.connect(copy)) as database:
        (answer,) = database.execute("PRAGMA integrity_check").fetchone()
    for path in copy.parent.glob("copy.sqlite*"):
        path.unlink()
    require(answer == "ok", f"the journal is damaged: {answer}")
