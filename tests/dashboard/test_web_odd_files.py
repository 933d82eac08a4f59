"""Files of a run that are not what they should be: links, pipes, bombs, changes in the middle of a look."""

import json
import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from tests.dashboard.site_on_disk import id_of, look_again, unfinish

import hatdfed.dashboard.api as api
from hatdfed.dashboard.comparison import select_comparable
from hatdfed.errors import RunFolderError
from hatdfed.runs.records.reading import reading
from hatdfed.runs.records.small_files import read_document, read_settings

RUN = "both/rnd-seed0"


@pytest.mark.parametrize("name", ["environment.json", "results.json", "config.yaml", "run.sqlite"])
def test_a_link_inside_a_run_is_not_followed(client, site, runs, tmp_path, name):
    file = runs / RUN / name
    elsewhere = tmp_path / "secret"
    elsewhere.write_text('{"processor": "a-secret-of-mine", "method": "a-secret-of-mine", "avg_accuracy": 1}')
    unfinish(runs / RUN, 3)
    file.unlink(missing_ok=True)
    file.symlink_to(elsewhere)
    look_again(site)
    run_id = id_of(client, RUN)
    shown = [client.get(address).text for address in ("/", f"/runs/{run_id}", f"/api/runs/{run_id}/series")]
    assert "a-secret-of-mine" not in "".join(shown)
    assert "link" in "".join(shown) if name != "run.sqlite" else "not a plain file" in "".join(shown)


@pytest.mark.parametrize("name", ["config.yaml", "results.json", "run.sqlite"])
def test_a_pipe_that_never_ends_holds_nobody_up(client, site, runs, name):
    unfinish(runs / RUN, 3)
    (runs / RUN / name).unlink(missing_ok=True)
    os.mkfifo(runs / RUN / name)
    look_again(site)
    card = next(card for card in client.get("/api/runs").json() if card["name"] == RUN)
    assert "not a plain file" in card["trouble"]


def test_nested_merge_keys_take_no_memory(tmp_path):
    merges = [f"k{i}: &k{i} {{<<: [{', '.join([f'*k{i - 1}'] * 9)}]}}" for i in range(1, 9)]
    (tmp_path / "config.yaml").write_text("k0: &k0 {a: 1}\n" + "\n".join(merges))
    with pytest.raises(RunFolderError, match="not plain YAML"):
        read_settings(tmp_path)


def test_a_ledger_is_fetched_by_several_threads_and_holds_nothing_open_in_between(runs, monkeypatch):
    monkeypatch.setattr(api, "_LINES_AT_A_TIME", 7)
    folder = runs / RUN
    with closing(sqlite3.connect(folder / "run.sqlite")) as database:
        lines = database.execute("SELECT count(*) FROM ledger").fetchone()[0]
    parts, pieces = api._stream_csv(folder), []
    for _ in range(3):  # each piece from a thread of its own, as the server does it
        thread = threading.Thread(target=lambda: pieces.append(next(parts)))
        thread.start()
        thread.join()
    opened = [fd.readlink() for fd in Path("/proc/self/fd").iterdir() if fd.exists()]
    assert not [path for path in opened if path.is_relative_to(folder)]
    pieces += parts
    assert "".join(pieces).count("\n") == lines + 1


def test_results_that_change_under_a_comparison_leave_one_run_out(client, site, runs):
    found = [site.find_run(card.id) for card in site.catalogue.cards()]
    (runs / RUN / "results.json").write_text("{")
    chosen = select_comparable(found)
    assert sum(len(row.runs) for world in chosen.worlds for row in world.rows) == 3
    assert chosen.left_out == ["results.json of rnd-seed0 is not valid JSON."]


@pytest.mark.parametrize(
    "change", [{"notes": 5}, {"notes": {"a": 1}}, {"avg_accuracy": 10**400}, {"std_accuracy": True}, {"config": []}]
)
def test_results_of_other_kinds_break_no_page(client, site, runs, change):
    file = runs / RUN / "results.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    look_again(site)
    run_id = id_of(client, RUN)
    for address in ("/", f"/runs/{run_id}", f"/compare?run={run_id}", f"/api/compare?run={run_id}"):
        assert client.get(address).status_code == 200, address


def test_texts_among_the_numbers_of_a_database_are_no_numbers(client, run_id, runs):
    with closing(sqlite3.connect(runs / "both/hat-dfed-seed0/run.sqlite")) as database:
        database.execute("UPDATE rounds SET avg_accuracy = 'x', upload_joules = x'00', regret_best_fixed = 'y'")
        database.execute("UPDATE servers SET accuracy = 'z' WHERE server = 1")
        database.execute("UPDATE links SET propensity = 'p'")
        database.commit()
    series = client.get(f"/api/runs/{run_id}/series").json()
    assert series["accuracy"]["avg"] == [None] * 5
    assert series["servers"][1] == [None] * 5
    assert series["servers"][0][0] is not None
    assert client.get(f"/api/runs/{run_id}/rounds/1").json()["links"][0]["propensity"] is None
    assert client.get(f"/api/compare?run={run_id}").json()["worlds"][0]["rows"][0]["curve"]["mean"] == [None] * 5


def test_probabilities_of_another_number_of_servers_are_not_shown(client, run_id, runs):
    with closing(sqlite3.connect(runs / "both/hat-dfed-seed0/run.sqlite")) as database:
        database.execute("UPDATE matrices SET propensity = zeroblob(4 * 9 * 9)")
        database.commit()
    assert client.get(f"/api/runs/{run_id}/rounds/1").json()["propensity"] is None


def test_a_missing_document_is_an_empty_one_and_a_large_one_is_refused(tmp_path):
    assert read_document(tmp_path, "results.json") == {}
    (tmp_path / "results.json").write_bytes(b" " * (8 * 1024 * 1024 + 1))
    with pytest.raises(RunFolderError, match="larger than 8 MiB"):
        read_document(tmp_path, "results.json")


def test_a_run_that_has_only_just_begun_is_running_without_rounds(client, site, runs):
    (runs / RUN / "results.json").unlink()
    (runs / RUN / "run.sqlite").write_bytes(b"")  # as SQLite leaves it until the first table is made
    with reading(runs / RUN / "run.sqlite") as reader:
        assert reader.progress()["rounds"] == 0
    look_again(site)
    card = next(card for card in client.get("/api/runs").json() if card["name"] == RUN)
    assert (card["trouble"], card["state"], card["played"]) == (None, "running", 0)
    assert client.get(f"/api/runs/{card['id']}/series").json()["rounds"] == 0
    assert client.get(f"/api/runs/{card['id']}/rounds/0").status_code == 404


def test_a_long_run_is_drawn_with_fewer_points_and_the_same_ends(client, runs, monkeypatch):
    run_id = id_of(client, RUN)
    whole = client.get(f"/api/runs/{run_id}/series").json()
    monkeypatch.setattr("hatdfed.dashboard.run_views.MAX_POINTS", 3)
    thin = client.get(f"/api/runs/{run_id}/series").json()
    assert thin["played"] == [1, 3, 5]
    assert thin["servers"] == [[line[0], line[2], line[4]] for line in whole["servers"]]
    assert thin["total_joules"] == [whole["total_joules"][at] for at in (0, 2, 4)]
    assert thin["titles"]["accuracy"] == whole["titles"]["accuracy"]
    assert (thin["rounds"], thin["figures"]) == (5, whole["figures"])


def test_a_long_run_is_read_thinned_out(runs):
    with reading(runs / RUN / "run.sqlite") as reader:
        assert sorted({t for t, _, _ in reader.servers(0, 4, step=3)}) == [0, 3, 4]
        assert len(list(reader.servers(2, 2))) == 4
        spent = [point["link_joules"] for point in reader.curves(0, 4, 1)]
        assert [point["link_joules"] for point in reader.curves(0, 4, 3)] == [spent[0], spent[3], spent[4]]
