"""Whether the dashboard's memory stays flat while it is watched.

python benchmarks/dashboard_watch.py [--minutes 10] [--out benchmarks/results/dashboard_watch.json]

The folder has 200 runs of 200 rounds and one that gains two rounds a second. Three readers keep the list open and three
the run that is played, as browsers do: they take its events, and ask for curves and the last round whenever there is
news; every half minute each closes its page and opens it again. One more goes from page to page. Memory, open files and
threads are those of the dashboard's process, every five seconds.
"""

import argparse
import itertools
import json
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
from dashboard import keep, make_runs, milliseconds, resident_mib, started

ROUNDS_A_SECOND, READERS = 2, 3
SAMPLE_SECONDS, PAGE_SECONDS, TURN_SECONDS = 5, 30, 2
WARM_MINUTES = 2  # after which memory has to be flat
TABLES = ("rounds", "servers", "links", "matrices", "ledger")


class Played:
    """A run that is played: rounds of a real one are added to it again, under later numbers."""

    def __init__(self, folder: Path) -> None:
        shutil.copytree(folder / "first", folder / "runs" / "live", ignore=shutil.ignore_patterns("*.png", "results*"))
        config = folder / "runs" / "live" / "config.yaml"
        config.write_text(config.read_text().replace("rounds: 200\n", "rounds: 1000000\n"))
        self.database, self.rounds = folder / "runs" / "live" / "run.sqlite", 200

    def play(self, stop: threading.Event) -> None:
        """Rounds, until it is stopped."""
        with closing(sqlite3.connect(self.database)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            names = {table: [row[1] for row in connection.execute(f"PRAGMA table_info({table})")] for table in TABLES}
            while not stop.wait(1 / ROUNDS_A_SECOND):
                for table, columns in names.items():
                    others = ", ".join(name for name in columns if name != "t")
                    copied = f"SELECT ?, {others} FROM {table} WHERE t = ?"  # noqa: S608 (names of our own)
                    connection.execute(f"INSERT INTO {table} (t, {others}) {copied}", (self.rounds, self.rounds % 200))
                connection.commit()
                self.rounds += 1


class Reader:
    """Somebody with one page open: takes its events, and asks for more when there is news."""

    def __init__(self, events: str, on_news: Callable[[], object]) -> None:
        self.events, self.on_news = events, on_news
        self.news = 0

    def watch(self, stop: threading.Event) -> None:
        """Until it is stopped, closing the page and opening it again now and then."""
        while not stop.is_set():
            end = time.monotonic() + PAGE_SECONDS
            with urlopen(self.events, timeout=60) as stream:  # noqa: S310 (our own address)
                for line in stream:
                    if stop.is_set() or time.monotonic() > end:
                        break
                    if line.startswith(b"data:"):
                        self.news += 1
                        self.on_news()


def go_from_page_to_page(addresses: Sequence[str], stop: threading.Event) -> None:
    """One address after another."""
    for address in itertools.cycle(addresses):
        if stop.wait(TURN_SECONDS):
            return
        milliseconds(address)


def sample(pid: int) -> dict[str, float]:
    """What the process holds now."""
    return {
        "mib": resident_mib(pid),
        "files": sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
        "threads": sum(1 for _ in Path(f"/proc/{pid}/task").iterdir()),
    }


def watch(address: str, pid: int, played: Played, minutes: float) -> tuple[list[dict[str, float]], int]:
    """All readers at work, and what the dashboard holds meanwhile."""
    with urlopen(f"{address}/api/runs") as answer:  # noqa: S310
        cards = json.load(answer)
    live = next(card["id"] for card in cards if card["name"] == "live")
    done = [card["id"] for card in cards if card["is_finished"]]
    data = f"{address}/api/runs/{live}"

    def renew_run() -> None:
        milliseconds(f"{data}/series")
        milliseconds(f"{data}/rounds/{played.rounds - 1 - ROUNDS_A_SECOND}")

    list_readers = [
        Reader(f"{address}/api/runs/events", lambda: milliseconds(f"{address}/?part=rows")) for _ in range(READERS)
    ]
    readers = [*list_readers, *(Reader(f"{data}/events", renew_run) for _ in range(READERS))]
    chosen = "&".join(f"run={run}" for run in done[:20])
    pages = ["/", f"/runs/{live}", f"/compare?{chosen}", f"/api/compare?{chosen}", "/?sort=accuracy", "/deployment"]
    pages += [f"/api/runs/{run}/{what}" for run in done[::20] for what in ("series", "rounds/100", "ledger.csv")]
    stop = threading.Event()
    work = [played.play, *(reader.watch for reader in readers)]
    threads = [threading.Thread(target=task, args=(stop,)) for task in work]
    threads.append(threading.Thread(target=go_from_page_to_page, args=([address + page for page in pages], stop)))
    began = time.monotonic()
    samples = [{"minute": 0.0, **sample(pid)}]
    for thread in threads:
        thread.start()
    try:
        while time.monotonic() < began + 60 * minutes:
            time.sleep(SAMPLE_SECONDS)
            samples.append({"minute": round((time.monotonic() - began) / 60, 2), **sample(pid)})
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    return samples, sum(reader.news for reader in readers)


def summary(samples: Sequence[dict[str, float]], news: int, rounds: int) -> dict[str, Any]:
    """What the samples say."""
    warm = [one for one in samples if one["minute"] >= WARM_MINUTES] or samples
    minutes, mib = ([one[name] for one in warm] for name in ("minute", "mib"))
    slope = float(np.polyfit(minutes, mib, 1)[0]) if len(warm) > 1 else 0.0
    after_a_minute = next((one for one in samples if one["minute"] >= 1), samples[-1])
    return {
        "minutes": round(samples[-1]["minute"], 1),
        "readers": 2 * READERS,
        "events_taken": news,
        "rounds_gained": rounds - 200,
        "mib_at_the_start": samples[0]["mib"],
        "mib_after_a_minute": after_a_minute["mib"],
        "mib_at_the_end": samples[-1]["mib"],
        "mib_at_most": max(one["mib"] for one in samples),
        "warm_after_minutes": WARM_MINUTES,
        "kib_a_minute_when_warm": round(1024 * slope, 1),
        "files_at_most": max(one["files"] for one in samples),
        "files_after_a_minute_and_at_the_end": [after_a_minute["files"], samples[-1]["files"]],
        "threads_at_most": max(one["threads"] for one in samples),
        "samples": samples[:: max(1, len(samples) // 40)],
    }


def main() -> None:
    """Make the runs, start the dashboard, watch it, write what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = make_runs(Path(folder))
        played = Played(Path(folder))
        with started(runs) as (address, pid):
            samples, news = watch(address, pid, played, given.minutes)
    keep(summary(samples, news, played.rounds), given.out)


if __name__ == "__main__":
    main()
