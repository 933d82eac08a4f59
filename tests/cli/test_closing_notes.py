"""What a run says at its end besides its table."""

from hatdfed.cli.app import main

SMALL = ["--servers", "3", "--rounds", "2", "--set", "images_per_server=40", "--set", "samples_per_round=10"]


def ended(monkeypatch, arguments):
    try:
        monkeypatch.setattr("sys.argv", ["hatdfed", *arguments])
        main()
    except SystemExit as end:
        return end.code or 0
    return 0


def test_models_that_held_no_numbers_are_told(tmp_path, capsys, monkeypatch):
    steps = ["--set", "learner.optimiser=sgd", "--set", "learner.learning_rate=1000"]
    assert ended(monkeypatch, ["run", *SMALL, *steps, "--fleet", "mailbox", "--out", str(tmp_path / "run")]) == 0
    assert "own model was not finite" in " ".join(capsys.readouterr().err.split())


def test_a_sweep_into_nowhere_or_a_name_that_no_folder_has_is_refused(tmp_path, capsys, monkeypatch):
    file = tmp_path / "sweep.yaml"
    file.write_text("base: {rounds: 1, servers: 3}\nseeds: 1\n")
    for place in ("", str(tmp_path / ("x" * 300))):
        assert ended(monkeypatch, ["sweep", str(file), "--out", place]) == 2
        assert "Traceback" not in capsys.readouterr().err
