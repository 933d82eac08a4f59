"""Small things that the tests of the dashboard share."""

import json
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import uvicorn
import yaml

from hatdfed.dashboard.app import listen, make_app
from hatdfed.runs.records.database import RunDatabase

ADDRESS = "http://127.0.0.1"
HOSTILE = '<script>alert("1")</script>'


def id_of(client, name):
    """The identifier of the run in that folder."""
    (found,) = [card["id"] for card in client.get("/api/runs").json() if card["name"] == name]
    return found


def look_again(site):
    """As if time had passed: the catalogue walks the disk anew."""
    site.catalogue._next_scan_at = 0.0


def unfinish(folder: Path, rounds: int) -> None:
    """Turn a finished run into one that has played so many rounds."""
    (folder / "results.json").unlink()
    database = RunDatabase(folder / "run.sqlite")
    database.forget_from(rounds)
    database.close()


def elsewhere(*folders: Path) -> None:
    """Let finished runs say that they were played in other worlds than their neighbours."""
    for folder in folders:
        results = json.loads((folder / "results.json").read_text())
        results["config"]["samples_per_round"] += 30
        (folder / "results.json").write_text(json.dumps(results))
        (folder / "config.yaml").write_text(yaml.safe_dump(results["config"]))


def change(folder: Path, section: str, key: str, value: object) -> None:
    """Let a finished run say that it was played with another setting."""
    results = json.loads((folder / "results.json").read_text())
    results["config"][section][key] = value
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "config.yaml").write_text(yaml.safe_dump(results["config"]))


def change_dataset(folder: Path, name: str) -> None:
    """Let a finished run say that it was played on another data set."""
    results = json.loads((folder / "results.json").read_text())
    results["config"]["dataset"] = name
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "config.yaml").write_text(yaml.safe_dump(results["config"]))


@contextmanager
def serving(site):
    """The dashboard on a port of its own; gives its address."""
    listener = listen("127.0.0.1", 0)
    config = uvicorn.Config(make_app(site), log_level="critical", timeout_graceful_shutdown=1, lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
