import json
import shutil

import pytest
from fastapi.testclient import TestClient
from tests.dashboard.site_on_disk import HOSTILE, elsewhere, id_of, look_again, unfinish

from hatdfed.dashboard.app import make_app
from hatdfed.dashboard.catalogue import Catalogue
from hatdfed.dashboard.site import Site


def names(text):
    return [
        line.split('aria-label="Choose ')[1].split('"')[0] for line in text.splitlines() if 'aria-label="Choose' in line
    ]


def test_the_list_shows_every_run_with_its_figures(client):
    page = client.get("/").text
    assert sorted(names(page)) == [f"both/{method}-seed{seed}" for method in ("hat-dfed", "rnd") for seed in (0, 1)]
    card = client.get("/api/runs").json()[0]
    assert f"{card['accuracy']:.1f}\N{NO-BREAK SPACE}%" in page
    assert page.count('class="state done"') == 4


def test_the_list_is_filtered_and_sorted_by_its_address(client):
    page = client.get("/", params={"method": "rnd", "sort": "accuracy", "order": "up"}).text
    assert sorted(names(page)) == ["both/rnd-seed0", "both/rnd-seed1"]
    accuracy = {card["name"]: card["accuracy"] for card in client.get("/api/runs").json()}
    assert [accuracy[name] for name in names(page)] == sorted(accuracy[name] for name in names(page))
    assert 'aria-sort="ascending"' in page


def test_an_open_list_asks_for_its_rows_alone(client):
    rows = client.get("/", params={"part": "rows"}).text
    assert len(names(rows)) == 4
    assert "<html" not in rows


def test_a_choice_that_nothing_fits_says_so(client):
    page = client.get("/", params={"method": HOSTILE}).text
    assert "No run fits this choice" in page
    assert HOSTILE not in page


def test_an_empty_folder_says_how_to_begin(tmp_path):
    with TestClient(make_app(Site(Catalogue(tmp_path))), base_url="http://127.0.0.1") as client:
        page = client.get("/").text
    assert "No run lies here yet" in page
    assert "hatdfed run --method hat-dfed" in page


def test_a_run_page_has_settings_machine_and_version(client, run_id):
    page = client.get(f"/runs/{run_id}").text
    for words in ("link_share", "packages.torch", "packages.hatdfed", "hat-dfed</code> on digits", "ledger.csv"):
        assert words in page


def test_a_run_that_plays_is_running_then_stale(client, site, runs, monkeypatch):
    unfinish(runs / "both" / "rnd-seed0", 3)
    look_again(site)
    card = next(card for card in client.get("/api/runs").json() if card["name"] == "both/rnd-seed0")
    assert (card["state"], card["played"], card["accuracy_of"]) == ("running", 3, "validation")
    monkeypatch.setattr("hatdfed.dashboard.catalogue.time.time", lambda: card["written"] + 3600)
    card = next(card for card in client.get("/api/runs").json() if card["name"] == "both/rnd-seed0")
    assert card["state"] == "stale"
    assert "stale" in client.get(f"/runs/{card['id']}").text


def test_a_finished_run_that_was_given_more_rounds_is_not_done(client, site, runs):
    folder = runs / "both" / "rnd-seed0"
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("rounds: 5", "rounds: 9"))
    look_again(site)
    card = next(card for card in client.get("/api/runs").json() if card["name"] == "both/rnd-seed0")
    assert (card["state"], card["rounds"], card["played"]) == ("running", 9, 5)


@pytest.mark.parametrize("name", ["config.yaml", "results.json", "run.sqlite", "environment.json"])
def test_a_broken_file_is_named_and_breaks_nothing_else(client, site, runs, name):
    (runs / "both" / "rnd-seed0" / name).write_bytes(b"\x00\xff: [")
    if name in ("config.yaml", "run.sqlite"):
        (runs / "both" / "rnd-seed0" / "results.json").unlink()
    look_again(site)
    page = client.get("/").text
    assert len(names(page)) == 4
    answer = client.get(f"/runs/{id_of(client, 'both/rnd-seed0')}")
    assert answer.status_code == 200
    assert "cannot be read" in answer.text


def test_a_run_that_is_removed_leaves_the_list(client, site, runs):
    shutil.rmtree(runs / "both" / "rnd-seed0")
    look_again(site)
    assert len(names(client.get("/").text)) == 3
    assert len(site.catalogue._entries) == 3


def test_pages_that_are_not_there_say_so_in_their_own_form(client):
    page = client.get("/nowhere")
    assert page.status_code == 404
    assert "There is no page at this address." in page.text
    answer = client.get("/api/runs/0123456789abcdef/series")
    assert answer.status_code == 404
    assert answer.json() == {"trouble": "There is no such run here. It may have been moved or removed."}


def test_the_comparison_page_pairs_seeds_and_names_the_front(client):
    ids = [card["id"] for card in client.get("/api/runs").json()]
    page = client.get("/compare", params={"run": ids}).text
    assert "on the front" in page
    assert 'title="On the front of validation accuracy and energy' in page
    assert "On the Pareto front of validation accuracy and energy: " in page
    assert "reference" in page
    assert "points" in page
    other = client.get("/compare", params={"run": ids, "against": id_of(client, "both/rnd-seed1")}).text
    assert "Difference to <code>rnd</code>" in other


def test_runs_of_one_comparison_have_its_reference_first(client, runs):
    chosen = {"run": [card["id"] for card in client.get("/api/runs").json()]}
    for method in ("rnd", "hat-dfed"):
        (runs / "both" / "results.json").write_text(json.dumps({"reference": method}))
        rows = client.get("/api/compare", params=chosen).json()["worlds"][0]["rows"]
        assert rows[0]["label"] == method
        assert rows[0]["is_reference"]
        assert f"Difference to <code>{method}</code>" in client.get("/compare", params=chosen).text
    against = {"against": id_of(client, "both/rnd-seed0")}
    assert client.get("/api/compare", params=chosen | against).json()["worlds"][0]["rows"][0]["label"] == "rnd"


def test_runs_of_other_worlds_have_a_table_of_their_own(client, site, runs):
    elsewhere(runs / "both" / "rnd-seed0", runs / "both" / "rnd-seed1")
    look_again(site)
    ids = [card["id"] for card in client.get("/api/runs").json()]
    page = client.get("/compare", params={"run": ids}).text
    assert "no shared seed" not in page
    worlds = client.get("/api/compare", params={"run": ids}).json()["worlds"]
    assert [[row["label"] for row in world["rows"]] for world in worlds] == [["hat-dfed"], ["rnd"]]
    assert all(f"<h2>{world['name']}</h2>" in page for world in worlds)
    assert all("samples_per_round" in world["name"] for world in worlds)


def test_a_comparison_of_nothing_says_how_to_choose(client):
    assert "Nothing is chosen yet" in client.get("/compare").text
    assert "Nothing is chosen yet" in client.get("/compare", params={"run": ["0000", HOSTILE]}).text


def test_an_unfinished_run_is_left_out_of_a_comparison_and_named(client, site, runs):
    unfinish(runs / "both" / "rnd-seed0", 3)
    look_again(site)
    ids = [card["id"] for card in client.get("/api/runs").json()]
    assert "both/rnd-seed0 is not finished" in client.get("/compare", params={"run": ids}).text


def test_a_run_page_without_any_round_answers(client, site, runs):
    unfinish(runs / "both" / "rnd-seed0", 0)
    look_again(site)
    run_id = id_of(client, "both/rnd-seed0")
    assert client.get(f"/runs/{run_id}").status_code == 200
    assert client.get(f"/api/runs/{run_id}/series").json()["rounds"] == 0


def test_a_run_without_test_data_says_so_and_is_not_compared(client, site, runs):
    file = runs / "both" / "rnd-seed0" / "results.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "accuracy_from": "validation"}))
    look_again(site)
    page = client.get(f"/runs/{id_of(client, 'both/rnd-seed0')}").text
    assert "Validation accuracy" in page
    assert "Test accuracy" not in page
    assert "its servers have no test data" in client.get("/").text
    ids = [card["id"] for card in client.get("/api/runs").json()]
    assert "both/rnd-seed0 has no test accuracy" in client.get("/compare", params={"run": ids}).text
