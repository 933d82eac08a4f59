"""Figures of a folder, drawn anew for a paper."""

import re

import pytest
from PIL import Image
from typer.testing import CliRunner

import hatdfed
from hatdfed.cli.app import app
from hatdfed.errors import ConfigError, RunFolderError

SMALL = {
    "dataset": "synthetic",
    "dataset_options": {"train": 300, "validation": 60, "test": 30},
    "network": "linear",
    "servers": 3,
    "rounds": 2,
    "validation_images": 50,
}
OF_A_RUN = {"accuracy", "energy", "accuracy_vs_energy", "accuracy_vs_time", "topology", "confusion"}


def invoke(*arguments):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared") / "all"
    hatdfed.compare(["rnd", "full"], seeds=2, out=folder, **SMALL)
    return folder


def test_a_run_is_drawn_as_svg_and_pdf_beside_what_it_has(compared):
    run = compared / "rnd-seed0"
    before = {path.name for path in run.iterdir()}
    assert "accuracy.svg" in invoke("figures", str(run)).stdout
    drawn = {path.name for path in (run / "figures").iterdir()}
    assert drawn == {f"{name}.{ending}" for name in OF_A_RUN for ending in ("svg", "pdf")}
    assert {path.name for path in run.iterdir()} == before | {"figures"}


def test_a_comparison_is_drawn_in_the_size_that_was_asked_for(compared, tmp_path):
    size = ("--width", "3.4", "--height", "2.5", "--font-size", "8", "--no-headline")
    invoke("figures", str(compared), "--format", "png,svg", *size, "-o", str(tmp_path))
    names = {path.stem for path in tmp_path.iterdir()}
    assert names == {"accuracy", "accuracy_vs_energy", "energy", "link_use", "regret"}
    for name in names:
        with Image.open(tmp_path / f"{name}.png") as picture:
            assert picture.size == (510, 375)
        page = (tmp_path / f"{name}.svg").read_text()
        assert re.search(r'width="244.8pt" height="180pt"', page)


def test_a_sweep_is_drawn_with_the_same_front(tmp_path):
    source = {"base": SMALL, "grid": {"method": ["rnd", "full"]}, "seeds": 1}
    hatdfed.sweep(source, out=tmp_path / "sweep")
    invoke("figures", str(tmp_path / "sweep"), "--format", "png")
    again = (tmp_path / "sweep" / "figures" / "pareto.png").read_bytes()
    assert again == (tmp_path / "sweep" / "pareto.png").read_bytes()


@pytest.mark.parametrize("formats", ["jpg", "svg,eps", ",", ""])
def test_an_unknown_format_is_refused(compared, formats):
    with pytest.raises(ConfigError, match="must be png, svg or pdf"):
        invoke("figures", str(compared), "--format", formats)


def test_a_folder_without_results_and_a_place_that_is_a_file_are_refused(compared, tmp_path):
    with pytest.raises(RunFolderError, match="holds neither a run"):
        invoke("figures", str(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        invoke("figures", str(compared / "rnd-seed0"), "-o", str(tmp_path / "file"))
