import json
import math
import re
import shutil
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from matplotlib.backends.backend_agg import FigureCanvasAgg
from tests.dashboard.site_on_disk import change, change_dataset, elsewhere, unfinish
from typer.testing import CliRunner

from hatdfed.cli.app import app
from hatdfed.errors import HatdfedError, RunFolderError
from hatdfed.report import document
from hatdfed.report.document import make_document, name_folders, render_html, render_markdown
from hatdfed.report.pdf import print_pdf

METHODS = ("hat-dfed", "rnd")

is_about_words = pytest.mark.usefixtures("blank_pictures")


class Elements(HTMLParser):
    """Every element of a page with its attributes."""

    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


@pytest.fixture(scope="module")
def page(played, tmp_path_factory, write_blank_picture):
    """A report of two runs."""
    runs = [played / "hat-dfed-seed0", played / "rnd-seed0"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FigureCanvasAgg, "print_png", write_blank_picture)
        return render_html(make_document(runs, tmp_path_factory.mktemp("pictures")))


def test_a_report_needs_nothing_but_itself(page):
    found = Elements(page).found
    tags = {tag for tag, _ in found}
    assert not tags & {"script", "link", "iframe", "object", "base"}
    assert all(attributes["src"].startswith("data:image/png;base64,") for tag, attributes in found if tag == "img")
    assert all(attributes["href"].startswith("#") for tag, attributes in found if tag == "a")
    assert "url(" not in page
    assert "@import" not in page
    assert sum(tag == "img" for tag, _ in found) == 5 + 2 * 7  # the comparison, and each run
    assert all(attributes.get("alt") for tag, attributes in found if tag == "img")


def test_the_numbers_of_a_report_are_those_of_results_json(page, played):
    values = [float(attributes["value"]) for tag, attributes in Elements(page).found if tag == "data"]
    for folder in (played / "hat-dfed-seed0", played / "rnd-seed0"):
        results = json.loads((folder / "results.json").read_text())
        for name in ("avg_accuracy", "std_accuracy", "best_accuracy", "worst_accuracy", "links_per_round"):
            assert results[name] in values
        assert 1e6 * results["total_energy_mj"] in values
        assert all(1e6 * spent in values for spent in results["energy_by_cause_mj"].values())
        assert set(results["accuracy_by_server"]) <= set(values)


def test_a_report_has_settings_machine_and_version(page):
    text = unescape(page)
    for words in ("link_share", "packages.hatdfed", "packages.torch", "hatdfed 0.", "seed 0"):
        assert words in text


@is_about_words
def test_a_report_says_that_the_front_is_of_validation_accuracy(page, played, tmp_path):
    assert 'title="On the front of validation accuracy and energy' in page
    assert "◆: on the Pareto front of validation accuracy and energy" in page
    words = render_markdown(make_document([played], tmp_path / "p"), tmp_path / "p")
    assert "On the Pareto front of validation accuracy and energy: " in words


@is_about_words
def test_a_report_of_a_comparison_has_its_reference(runs, tmp_path):
    folder = runs / "both"
    for method in ("rnd", "hat-dfed"):
        (folder / "results.json").write_text(json.dumps({"reference": method}))
        (part,) = make_document([folder], tmp_path / method).comparisons
        assert part.world.reference.label == method


@is_about_words
def test_rows_of_a_comparison_are_in_the_order_of_its_table(runs, tmp_path):
    folder = runs / "both"
    for order in (["rnd", "hat-dfed"], ["hat-dfed", "rnd"]):
        methods = [{"method": method} for method in order]
        (folder / "results.json").write_text(json.dumps({"reference": "rnd", "methods": methods}))
        document = make_document([folder], tmp_path / order[0])
        assert [row.label for row in document.comparisons[0].world.rows] == order
        assert [run.name for run in document.runs] == [f"{method}-seed{seed}" for method in order for seed in range(2)]


@is_about_words
def test_both_forms_say_what_plus_minus_is_and_which_difference_is_of_energy(runs, tmp_path):
    document = make_document([runs / "both"], tmp_path / "p")
    for words in (render_html(document), render_markdown(document, tmp_path / "p")):
        assert "Mean ± standard deviation over seeds" in words
        assert "energy difference" in words.lower()


@is_about_words
def test_runs_of_other_worlds_have_a_section_of_their_own_in_either_form(runs, tmp_path):
    elsewhere(runs / "both" / "rnd-seed0", runs / "both" / "rnd-seed1")
    document = make_document([runs / "both"], tmp_path / "p")
    names = [f"digits, 4 servers, 5 rounds (samples_per_round {count})" for count in _list_samples(runs)]
    assert [part.title for part in document.comparisons] == [f"Comparison: {name}" for name in names]
    for words in (render_html(document), render_markdown(document, tmp_path / "p").replace("\\", "")):
        assert all(f"Comparison: {name}" in words for name in names)
        assert words.count("Mean ± standard deviation over seeds.") == 2
        assert "no shared seed" not in words
        assert "Differences are to" not in words  # one row each


def _list_samples(runs):
    configs = (yaml.safe_load((runs / "both" / f"{name}-seed0" / "config.yaml").read_text()) for name in METHODS)
    return [config["samples_per_round"] for config in configs]


@is_about_words
@pytest.mark.parametrize("order", [("here", "there"), ("there", "here")])
def test_every_data_set_has_its_own_table_figures_and_stored_reference(runs, tmp_path, order):
    shutil.copytree(runs / "both", runs / "here")
    (runs / "both").rename(runs / "there")
    (runs / "here" / "results.json").write_text(json.dumps({"reference": "hat-dfed"}))
    (runs / "there" / "results.json").write_text(json.dumps({"reference": "rnd"}))
    for folder in (runs / "there").glob("*-seed?"):
        change_dataset(folder, "other")
    document = make_document([runs / name for name in order], tmp_path / "p")
    found = {part.world.name.split(",")[0]: part for part in document.comparisons}
    assert {name: part.world.reference.label for name, part in found.items()} == {"digits": "hat-dfed", "other": "rnd"}
    for part in document.comparisons:
        assert sorted(row.label for row in part.world.rows) == sorted(METHODS)
        assert all(row.points is not None for row in part.world.rows)
        assert len(part.pictures) == 5
    assert len({picture.path for part in document.comparisons for picture in part.pictures}) == 10


@is_about_words
def test_one_more_run_changes_no_reference(runs, tmp_path):
    (runs / "both" / "results.json").write_text(json.dumps({"reference": "rnd"}))
    shutil.copytree(runs / "both" / "hat-dfed-seed0", runs / "more" / "full-seed0")
    for folders in ([runs / "both", runs / "more" / "full-seed0"], [runs / "more" / "full-seed0", runs / "both"]):
        (part,) = make_document(folders, tmp_path / "p").comparisons
        assert part.world.reference.label == "rnd"


@is_about_words
def test_runs_of_a_sweep_are_in_the_order_of_its_table(runs, tmp_path):
    sweep = runs / "sweep"
    for method in METHODS:
        shutil.copytree(runs / "both" / f"{method}-seed0", sweep / "runs" / f"method={method},seed=0")
    (sweep / "sweep.yaml").write_text("")
    for methods in (("rnd", "hat-dfed"), ("hat-dfed", "rnd")):
        rows = [{"point": f"method={method}"} for method in methods]
        (sweep / "summary.json").write_text(json.dumps({"rows": rows}))
        document = make_document([sweep], tmp_path / "p")
        assert [row.label for row in document.comparisons[0].world.rows] == list(methods)
        assert [run.name for run in document.runs] == [f"method={method},seed=0" for method in methods]


@is_about_words
def test_a_comparison_whose_results_cannot_be_read_is_named_in_a_report(runs, tmp_path):
    (runs / "both" / "results.json").write_text("{")
    document = make_document([runs / "both"], tmp_path / "p")
    assert "results.json of both is not valid JSON." in document.left_out


@is_about_words
def test_a_run_that_is_not_finished_says_so(runs, tmp_path):
    unfinish(runs / "both" / "rnd-seed0", 3)
    page = render_html(make_document([runs / "both" / "rnd-seed0"], tmp_path / "pictures"))
    assert "Not finished: 3 of 5 rounds." in page
    assert "Validation accuracy so far" in page


def test_a_run_without_rounds_has_no_pictures(runs, tmp_path):
    unfinish(runs / "both" / "rnd-seed0", 0)
    page = render_html(make_document([runs / "both" / "rnd-seed0"], tmp_path / "pictures"))
    assert "No round has been completed yet." in page


@is_about_words
def test_names_are_text_in_both_forms(runs, tmp_path):
    name = "<script>alert(1)<|`*"
    (runs / "both" / "rnd-seed0").rename(runs / name)
    config = yaml.safe_load((runs / name / "config.yaml").read_text())
    (runs / name / "config.yaml").write_text(yaml.safe_dump({**config, "method": "<img src=x>"}))
    (runs / name / "environment.json").write_text(json.dumps({"processor": "<script>x</script>"}))
    document = make_document([runs / name], tmp_path / "pictures")
    page, words = render_html(document), render_markdown(document, tmp_path / "pictures")
    assert "<script>" not in page
    assert "<img src=x>" not in page
    assert not re.search(r"(?<!\\)<", words)


PAGE_MM = 269  # of A4 paper between its margins


def count_pages(page):
    """An upper estimate of the printed pages of a summary, from the style sheet's sizes.

    Wide figures are at most 125 mm high, so two fit on a page. Two runs of the appendix stand side by side in 85 mm, so
    six fit on a page. A row of a table takes at most 12 mm, if names wrap; settings are in three columns of 4 mm.
    """
    found = Elements(page).found
    wide = page.partition('<div class="pictures wide">')[2].partition("</div>")[0].count("<img")
    shared = page.partition('<section id="settings">')[2].count("<dt>")
    runs = sum(attributes.get("class") == "run" for _, attributes in found)
    rows = page.partition('<div class="appendix">')[0].count("<tr>")
    tables, settings = (12 * rows + 60) / PAGE_MM, (4 * math.ceil(shared / 3) + 30) / PAGE_MM
    return sum(map(math.ceil, (tables, wide / 2, runs / 6, settings)))


@pytest.fixture(scope="module")
def eighteen(played, tmp_path_factory):
    """Eighteen runs of two methods: other seeds are named in copies, so that there is nothing to play."""
    folder = tmp_path_factory.mktemp("eighteen") / "all"
    for seed in range(9):
        for method in ("hat-dfed", "rnd"):
            copy = folder / f"{method}-seed{seed}"
            shutil.copytree(played / f"{method}-seed{seed % 2}", copy)
            config = yaml.safe_load((copy / "config.yaml").read_text())
            (copy / "config.yaml").write_text(yaml.safe_dump({**config, "seed": seed}))
    return folder


def test_a_report_of_eighteen_runs_is_a_summary_that_can_be_sent_and_printed(eighteen, tmp_path):
    page = render_html(make_document([eighteen], tmp_path))
    summary, _, appendix = page.partition('<div class="appendix">')
    assert summary.count("<img") == 5  # the figures of the comparison
    assert appendix.count("<img") == 18  # the accuracy of each run
    assert summary.count('href="#run-') == 18  # the table of runs leads to them
    assert len(page.encode()) < 2_000_000
    assert count_pages(page) <= 12


@is_about_words
def test_settings_that_all_runs_share_are_listed_once(eighteen, tmp_path):
    document = make_document([eighteen], tmp_path / "p")
    assert ("servers", "4") in document.settings
    assert all(("servers", "4") not in run.settings for run in document.runs)
    assert {dict(run.settings)["seed"] for run in document.runs} == {str(seed) for seed in range(9)}
    words = render_markdown(document, tmp_path / "p")
    assert words.count("| servers | 4 |") == 1
    assert "## Runs" in words


@is_about_words
def test_runs_beyond_what_is_drawn_are_in_tables_with_a_word(eighteen, tmp_path, monkeypatch):
    monkeypatch.setattr("hatdfed.report.document.MOST_DRAWN", 10)
    document = make_document([eighteen], tmp_path)
    assert not any(run.pictures for run in document.runs)
    assert "Runs are in tables only" in document.left_out[-1]


@is_about_words
def test_a_report_says_nothing_of_the_folders_of_its_machine(runs, tmp_path):
    broken, noted = runs / "both" / "rnd-seed0", runs / "both" / "rnd-seed1"
    (broken / "run.sqlite").write_bytes(b"not a database at all")
    (noted / "environment.json").write_text(json.dumps({"python": "/home/some one/bin/python"}))
    results = json.loads((noted / "results.json").read_text())
    (noted / "results.json").write_text(json.dumps({**results, "notes": ["Traces are in /home/me/traces/sun.csv."]}))
    document = make_document([runs / "both"], tmp_path / "p")
    for words in (render_html(document), render_markdown(document, tmp_path / "p")):
        assert str(tmp_path) not in words
        assert "/home/" not in words
        assert "…/sun.csv" in words
        assert "…/python" in words
        assert "rnd-seed1" in words.replace("\\", "")


def test_runs_of_one_name_are_told_apart_by_as_much_of_their_path_as_it_takes():
    assert name_folders([Path("/x/y/a"), Path("/x/y/b")]) == ["a", "b"]
    assert name_folders([Path("/x/y/a"), Path("/x/z/a")]) == ["y/a", "z/a"]


def test_figures_are_dark_on_dark_screens_and_never_in_print(page):
    rules = re.search(r"@media ([^{]*)\{ img \{ filter: invert", page)
    assert rules is not None
    assert rules[1].strip() == "screen and (prefers-color-scheme: dark)"
    printed = page.partition("@media print {")[2]
    assert "max-height: 125mm" in printed
    assert re.search(r"img,[^{]*\{ break-inside: avoid", printed)


@pytest.mark.parametrize("style", [document._WIDE, document._HALF])
def test_words_of_figures_can_be_read_in_print(style):
    printed = {7.2: 182, 4.2: 89}[style.width] / 25.4  # inches: the width between margins, and half of it
    assert style.font_size * printed / style.width >= 7  # points


def test_the_command_writes_one_file_or_markdown_with_pictures(runs, tmp_path):
    run = str(runs / "both" / "hat-dfed-seed0")
    done = CliRunner().invoke(app, ["report", run, "-o", str(tmp_path / "one.html")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "one.html").read_text().startswith("<!doctype html>")
    done = CliRunner().invoke(app, ["report", run, "--format", "md", "-o", str(tmp_path / "two.md")])
    assert done.exit_code == 0, done.output
    pictures = re.findall(r"\]\(([^)]+)\)", (tmp_path / "two.md").read_text())
    assert len(pictures) == 7
    assert all((tmp_path / picture).is_file() for picture in pictures)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-o", "x.docx"], "ends in .docx, but reports are .html, .md or .pdf"),
        (["-o", "x"], "ends in nothing, but reports are"),
        (["-o", "x.pdf", "--format", "html"], "ends in .pdf, but --format is html"),
    ],
)
def test_a_file_whose_ending_is_not_its_format_is_refused(runs, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["report", str(runs / "both" / "hat-dfed-seed0"), *arguments])
    assert sentence in str(done.exception)
    assert list(tmp_path.glob("x*")) == []


@is_about_words
def test_the_ending_of_the_file_decides_the_format(runs, tmp_path, monkeypatch):
    run = str(runs / "both" / "hat-dfed-seed0")
    monkeypatch.setattr("hatdfed.report.pdf.find_browser", lambda: "chromium")
    monkeypatch.setattr("hatdfed.report.pdf.print_pdf", lambda page, browser: b"%PDF-")
    for name, start in [("a.pdf", b"%PDF-"), ("b.MD", b"# "), ("c.htm", b"<!doctype")]:
        done = CliRunner().invoke(app, ["report", run, "-o", str(tmp_path / name)])
        assert done.exit_code == 0, done.exception
        assert (tmp_path / name).read_bytes().startswith(start)


def test_a_folder_without_runs_is_refused_in_a_sentence(tmp_path):
    done = CliRunner().invoke(app, ["report", str(tmp_path), "-o", str(tmp_path / "x.html")])
    assert done.exit_code != 0
    assert "There is no run in" in str(done.exception)


@is_about_words
def test_a_run_that_cannot_be_read_is_named_and_the_others_are_reported(runs, tmp_path):
    (runs / "both" / "rnd-seed0" / "run.sqlite").write_bytes(b"not a database at all")
    folders = [runs / "both" / name for name in ("rnd-seed0", "rnd-seed1")]
    document = make_document(folders, tmp_path / "pictures")
    assert len(document.runs) == 1
    assert document.left_out[0].startswith("rnd-seed0 is left out: The records in")
    assert "rnd-seed0 is left out" in render_html(document)
    assert "rnd-seed0 is left out" in render_markdown(document, tmp_path / "pictures").replace("\\", "")
    with pytest.raises(RunFolderError, match="rnd-seed0 is left out"):
        make_document(folders[:1], tmp_path / "pictures")


@is_about_words
def test_a_policy_that_only_a_script_knew_spoils_no_report(runs, tmp_path):
    file = runs / "both" / "rnd-seed0" / "config.yaml"
    config = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**config, "method": "mine", "policy": {"name": "mine"}}))
    document = make_document([runs / "both"], tmp_path / "pictures")
    assert (len(document.runs), document.left_out) == (4, [])
    mine = next(run for run in document.runs if run.title.startswith("mine on"))
    names = {"accuracy", "energy", "accuracy_vs_energy", "accuracy_vs_time", "topology", "confusion"}
    assert {picture.path.stem for picture in mine.pictures} == names


@is_about_words
def test_rows_that_differ_inside_a_section_are_all_named_and_drawn(runs, tmp_path):
    change(runs / "both" / "rnd-seed1", "learner", "cool_down", 0.5)
    document = make_document([runs / "both" / "rnd-seed0", runs / "both" / "rnd-seed1"], tmp_path / "pictures")
    labels = ["rnd (cool_down 0.0)", "rnd (cool_down 0.5)"]
    (part,) = document.comparisons
    assert [row.label for row in part.world.rows] == labels
    assert all(", ".join(labels) in picture.words for picture in part.pictures)


@is_about_words
def test_more_runs_than_a_report_holds_are_cut_with_a_word(runs, tmp_path, monkeypatch):
    monkeypatch.setattr("hatdfed.report.document.MOST_RUNS", 1)
    document = make_document([runs / "both" / "rnd-seed0", runs / "both" / "rnd-seed1"], tmp_path / "pictures")
    assert len(document.runs) == 1
    assert document.left_out == ["Only the first 1 runs are in this report."]


@is_about_words
def test_results_of_other_kinds_break_no_report(runs, tmp_path):
    file = runs / "both" / "rnd-seed0" / "results.json"
    odd = {"notes": 5, "accuracy_by_server": None, "energy_by_cause_mj": [1], "rounds": 5}
    file.write_text(json.dumps({**json.loads(file.read_text()), **odd}))
    assert "Finished after 5 rounds" in render_html(make_document([file.parent], tmp_path / "pictures"))
    file.write_text(json.dumps({**json.loads(file.read_text()), "rounds": "many"}))
    assert "Not finished" in render_html(make_document([file.parent], tmp_path / "pictures"))


def test_a_report_without_chromium_says_what_to_install(runs, tmp_path, monkeypatch):
    monkeypatch.setattr("hatdfed.report.pdf.shutil.which", lambda name: None)
    target = tmp_path / "one.pdf"
    done = CliRunner().invoke(app, ["report", str(runs / "both"), "--format", "pdf", "-o", str(target)])
    assert done.exit_code != 0
    assert "apt-get install chromium" in str(done.exception)
    assert not target.exists()


def test_a_browser_that_prints_nothing_is_said_in_a_sentence():
    with pytest.raises(HatdfedError, match="printed no PDF"):
        print_pdf("<p>x", shutil.which("true"))


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no Chromium: apt-get install chromium")
def test_chromium_prints_a_report(runs, tmp_path):
    target = tmp_path / "one.pdf"
    run = str(runs / "both" / "rnd-seed0")
    done = CliRunner().invoke(app, ["report", run, "--format", "pdf", "-o", str(target)])
    assert done.exit_code == 0, done.output
    printed = target.read_bytes()
    assert printed.startswith(b"%PDF-")
    assert len(printed) > 50_000  # with its pictures


def test_tables_are_cards_on_a_phone_and_notes_keep_numbers_and_units_together(page, runs, tmp_path):
    rows = re.findall(r'<table class="cards">.*?</table>', page, re.DOTALL)
    assert len(rows) == 3, "the comparison, and the servers of two runs"
    assert all(
        cell.startswith(" data-label=") or "data-label=" in cell
        for row in rows
        for cell in re.findall(r"<td([^>]*)>", row)
    )
    noted = runs / "both" / "rnd-seed1" / "results.json"
    noted.write_text(json.dumps({**json.loads(noted.read_text()), "notes": ["It came to 59.3 % in the end."]}))
    assert "59.3\N{NO-BREAK SPACE}%" in render_html(make_document([noted.parent], tmp_path))
