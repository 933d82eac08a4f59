import asyncio

import pytest
from tests.dashboard.site_on_disk import change_dataset, id_of, look_again
from tests.dashboard.test_web_pages import names

from hatdfed.dashboard.deployment import DeploymentMonitor, make_finder
from hatdfed.deploy.coordinator.journal import Journal
from hatdfed.errors import HatdfedError

FINISHED = {"run": "abc", "state": "done", "round": 9, "rounds": 9, "joules": {}, "servers": []}


def test_a_search_finds_runs_that_have_all_its_words_in_any_case(client):
    assert names(client.get("/", params={"search": "RND seed1"}).text) == ["both/rnd-seed1"]
    assert "No run fits this choice" in client.get("/", params={"search": "rnd nowhere"}).text


@pytest.mark.parametrize(("group", "headings"), [("method", ["hat-dfed", "rnd"]), ("sweep", ["both"])])
def test_the_list_is_grouped_with_a_box_for_each_group(client, group, headings):
    page = client.get("/", params={"group": group}).text
    assert [f'aria-label="Choose all runs of {name}"' in page for name in headings] == [True] * len(headings)
    assert page.count('class="group"') == len(headings)


def test_results_are_sorted_within_each_data_set_alone(client, site, runs):
    change_dataset(runs / "both" / "rnd-seed0", "other")
    look_again(site)
    assert 'class="group"' not in client.get("/").text
    page = client.get("/", params={"sort": "accuracy"}).text
    assert page.count('class="group"') == 2
    assert names(page)[-1] == "both/rnd-seed0"
    assert "sorted within each data set" in page


@pytest.mark.parametrize(("method", "reference"), [("rnd", "hat-dfed"), ("hat-dfed", "rnd")])
def test_a_run_on_another_data_set_is_neither_paired_nor_ranked(client, site, runs, method, reference):
    for seed in (0, 1):
        change_dataset(runs / "both" / f"{method}-seed{seed}", "other")
    look_again(site)
    ids = [card["id"] for card in client.get("/api/runs").json()]
    content = {"run": ids, "against": id_of(client, f"both/{reference}-seed0")}
    here, other = client.get("/api/compare", params=content).json()["worlds"]
    assert ([row["label"] for row in here["rows"]], here["name"].split(",")[0]) == ([reference], "digits")
    assert ([row["label"] for row in other["rows"]], other["name"].split(",")[0]) == ([method], "other")
    assert not [title for title in here["titles"].values() if method == title.split()[0] or title.endswith(method)]


def look_before_and_after_the_end(status, **monitor_options):
    answers = [status]

    async def ask():
        if not answers:
            raise HatdfedError("gone")
        return answers.pop()

    async def look_twice():
        monitor = DeploymentMonitor("x", ask, **monitor_options)
        first = await monitor.read_status()
        monitor._read_at = -100.0
        return first, await monitor.read_status()

    return asyncio.run(look_twice())


def test_a_finished_deployment_stays_finished_when_its_coordinator_has_ended():
    first, second = look_before_and_after_the_end(FINISHED)
    assert first["state"] == second["state"] == "done"
    assert second["trouble"] is None


@pytest.mark.parametrize(("name", "state"), [("abc", "done"), ("other", None)])
def test_a_deployment_whose_end_nobody_saw_is_finished_if_its_run_folder_says_so(client, site, runs, name, state):
    folder = runs / "both" / "rnd-seed0"
    journal = Journal(folder / "journal.sqlite")
    journal.write_fact("run", name)
    journal.close()
    seen = FINISHED | {"state": "running", "round": 2, "rounds": 5, "servers": [{"index": 0, "active": True}]}
    _, after = look_before_and_after_the_end(seen, find_finished=make_finder(site.catalogue))
    assert after.get("state") == state
    if state is None:
        assert after["trouble"] == "gone"
        return
    assert (after["round"], after["results"]) == (5, id_of(client, "both/rnd-seed0"))
    assert after["joules"] > 0
    assert after["servers"][0]["here"] == "ended"


def test_a_damaged_journal_does_not_break_the_page_of_a_deployment(site, runs):
    (runs / "both" / "rnd-seed0" / "journal.sqlite").write_bytes(b"no database" * 100)
    _, after = look_before_and_after_the_end(
        FINISHED | {"round": 2, "state": "running"}, find_finished=make_finder(site.catalogue)
    )
    assert after["trouble"] == "gone"
