"""What a run brought, from its folder, by the tables and fields of docs/results.md.

`python tests/compat/telling.py RUN` prints it as the files in tests/fixtures/v0.1.0/expected have it.
"""

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

RESULTS = ("accuracy_by_server", "personal_accuracy", "total_energy_mj", "link_energy_mj")


def rounds_of(folder):
    """Links, accuracies and joules of every round."""
    columns = "t, upload_joules, training_joules, link_joules"
    with closing(sqlite3.connect(_address(folder / "run.sqlite"), uri=True)) as database:
        return [_round(database, *row) for row in _rows(database, "rounds", columns)]


def results_of(folder):
    """Figures that depend on what was played, and not on who played it and how fast."""
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return {name: results[name] for name in RESULTS}


def _address(path):
    """Where nobody writes, SQLite is told so: or it makes files of its own there, and fixtures are only read."""
    is_still = not path.with_name(f"{path.name}-wal").exists()
    return f"{path.resolve().as_uri()}?{'immutable=1' if is_still else 'mode=ro'}"


def _round(database, t, *joules):
    links = [list(pair) for pair in _rows(database, "links", "receiver, sender", t)]
    accuracy = [value for (value,) in _rows(database, "servers", "accuracy", t)]
    return {"t": t, "links": links, "accuracy": accuracy, "joules": list(joules)}


def _rows(database, table, columns, t=None):
    where = "" if t is None else f"WHERE t = {t} "
    return database.execute(f"SELECT {columns} FROM {table} {where}ORDER BY rowid").fetchall()  # noqa: S608 (our own)


if __name__ == "__main__":
    run = Path(sys.argv[1])
    lines = ",\n".join(json.dumps(row) for row in rounds_of(run))
    sys.stdout.write(f'{{"results": {json.dumps(results_of(run))},\n"rounds": [\n{lines}\n]}}\n')
