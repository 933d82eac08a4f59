"""The command line as a user types it: what it prints, and what it says when something is wrong."""

import json
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from hatdfed.cli.app import main

SMALL = ["--dataset", "synthetic", "--servers", "3", "--set", "network=linear", "--set", "validation_images=60"]
SIX_METRICS = {
    "avg_accuracy", "var_accuracy", "std_accuracy", "best_accuracy", "worst_accuracy", "total_energy_mj",
    "link_energy_mj", "energy_by_cause_mj", "links_per_round", "rounds", "seconds", "run_folder", "config",
}  # fmt: skip
pytestmark = pytest.mark.usefixtures("blank_pictures")  # the first test draws: it runs in a process of its own


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def hatdfed(monkeypatch, capfd):
    """The command in this process, as its entry point runs it: importing torch once saves minutes."""

    def call(*arguments, cwd, check=True):
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", ["hatdfed", *arguments])
        capfd.readouterr()
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        done = Done(code, *capfd.readouterr())
        if check:
            assert done.returncode == 0, done.stderr
        return done

    return call


def refused(done, *expected):
    """Exit code 2, one sentence that says all of `expected`, no traceback."""
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr
    sentences = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(sentences) == 1, done.stderr
    for part in expected:
        assert part in sentences[0], sentences[0]
    return True


def test_a_run_prints_one_json_object_with_the_papers_metrics(tmp_path):
    command = [Path(sys.executable).with_name("hatdfed"), "run", *SMALL, "--method", "rnd", "--rounds", "3", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert set(result) >= SIX_METRICS
    assert result["rounds"] == 3
    assert result["config"]["method"] == "rnd"
    assert result["worst_accuracy"] <= result["avg_accuracy"] <= result["best_accuracy"] <= 100
    assert result["std_accuracy"] ** 2 == pytest.approx(result["var_accuracy"])
    assert sum(result["energy_by_cause_mj"].values()) == pytest.approx(result["total_energy_mj"])
    folder = tmp_path / result["run_folder"]
    names = {path.name for path in folder.iterdir()}
    assert names >= {"config.yaml", "environment.json", "run.sqlite", "results.json", "checkpoint.safetensors"}
    assert names >= {"accuracy.png", "energy.png", "accuracy_vs_energy.png", "topology.png"}
    assert json.loads((folder / "results.json").read_text())["avg_accuracy"] == result["avg_accuracy"]


def test_without_a_terminal_progress_is_plain_lines(hatdfed, tmp_path):
    done = hatdfed("run", *SMALL, "--rounds", "2", "--out", "here", cwd=tmp_path)
    assert re.search(r"round 2/2 {2}validation accuracy [\d.]+ % {2}spent [\d.]+ k?J", done.stderr)
    assert "\x1b" not in done.stderr + done.stdout
    assert "hat-dfed on synthetic, 3 servers, 2 rounds, seed 0" in done.stdout
    assert "Run folder: here" in done.stdout


def test_a_config_file_a_flag_and_set_are_layers(hatdfed, tmp_path):
    (tmp_path / "mine.yaml").write_text("method: rnd\nrounds: 9\nlink_share: 0.5\nseed: 4\n")
    done = hatdfed("run", "mine.yaml", *SMALL, "--rounds", "1", "--set", "link_share=1.0", "--json", cwd=tmp_path)
    config = json.loads(done.stdout)["config"]
    assert (config["rounds"], config["link_share"], config["seed"]) == (1, 1.0, 4)


def test_a_run_goes_on_where_it_was_and_can_be_shown(hatdfed, tmp_path):
    hatdfed("run", *SMALL, "--rounds", "2", "--out", "run", cwd=tmp_path)
    done = hatdfed("run", "--resume", "run", "--rounds", "4", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["rounds"] == 4
    assert "4 rounds" in hatdfed("show", "run", cwd=tmp_path).stdout
    assert json.loads(hatdfed("show", "run", "--json", cwd=tmp_path).stdout)["rounds"] == 4
    (tmp_path / "run" / "results.json").unlink()
    assert "4 of 4 rounds completed" in hatdfed("show", "run", cwd=tmp_path).stdout


def test_what_was_spent_before_a_stop_is_counted_when_a_run_goes_on(hatdfed, tmp_path):
    whole = hatdfed("run", *SMALL, "--rounds", "4", "--out", "whole", cwd=tmp_path).stderr
    hatdfed("run", *SMALL, "--rounds", "2", "--set", "horizon=4", "--out", "parts", cwd=tmp_path)
    parts = hatdfed("run", "--resume", "parts", "--rounds", "4", cwd=tmp_path).stderr
    for line in ("round 3/4", "round 4/4"):
        spent = [re.search(rf"{line} .*spent ([\d.]+ \w+)", text)[1] for text in (whole, parts)]
        assert spent[0] == spent[1]


def test_a_link_share_without_effect_is_said_before_the_run(hatdfed, tmp_path):
    done = hatdfed("run", *SMALL, "--method", "d-psgd", "--rounds", "1", "--set", "link_share=0.1", cwd=tmp_path)
    assert "note: link_share has no effect: policy ring has its own number of links." in done.stderr


def test_an_export_of_a_run_without_checkpoints_says_why_there_is_no_model(hatdfed, tmp_path):
    hatdfed("run", *SMALL, "--rounds", "1", "--set", "checkpoint_every=0", "--out", "run", cwd=tmp_path)
    for server in ([], ["--server", "0"]):
        done = hatdfed("export", "run", *server, "--out", "m.safetensors", cwd=tmp_path, check=False)
        assert refused(
            done, "run contains no model: it was executed with checkpoint_every 0", "--set checkpoint_every="
        )


def test_an_export_of_a_run_that_is_not_over_says_of_which_round_it_is(hatdfed, tmp_path):
    hatdfed("run", *SMALL, "--rounds", "2", "--out", "run", cwd=tmp_path)
    arguments = ("export", "run", "--server", "0", "--out", "m.safetensors", "--json")
    done = hatdfed(*arguments, cwd=tmp_path)
    assert json.loads(done.stdout)["rounds"] == "2"
    assert "note:" not in done.stderr
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("\nrounds: 2\n", "\nrounds: 5\n"))
    done = hatdfed(*arguments, cwd=tmp_path)
    assert "note: The run is not over: this is the model of round 2 of 5." in done.stderr
    assert json.loads(done.stdout)["rounds"] == "2"


def test_methods_and_datasets_are_listed(hatdfed, tmp_path):
    methods = {row["name"] for row in json.loads(hatdfed("methods", "--json", cwd=tmp_path).stdout)}
    assert methods >= {
        "hat-dfed", "hat-dfed-literal", "hat-dfed-released", "hat-dfed-without-utc", "hat-dfed-without-ima",
        "rnd", "d-psgd", "local", "full",
    }  # fmt: skip
    assert "hat-dfed-without-utc" in hatdfed("methods", cwd=tmp_path).stdout
    datasets = {row["name"]: row["found"] for row in json.loads(hatdfed("datasets", "--json", cwd=tmp_path).stdout)}
    assert datasets["digits"] == "embedded"
    assert set(datasets) >= {"digits", "fashion-mnist", "cifar-10", "synthetic"}


def test_the_doctor_finds_what_a_run_needs(hatdfed, tmp_path):
    findings = json.loads(hatdfed("doctor", "--json", cwd=tmp_path).stdout)
    assert {finding["what"] for finding in findings} >= {"training", "energy", "data sets", "disk"}
    assert all(finding["good"] for finding in findings)


def test_the_doctor_says_of_every_meter_whether_it_works_and_if_not_why(hatdfed, tmp_path):
    findings = json.loads(hatdfed("doctor", "--json", cwd=tmp_path).stdout)
    (detail,) = [finding["detail"] for finding in findings if finding["what"] == "energy"]
    assert detail.startswith(("can be measured by", "is modelled"))
    for meter in ("nvml", "rapl", "hwmon"):
        assert re.search(rf"{meter}( \(|: [A-Z].+\.)", detail)


@pytest.mark.parametrize(
    ("network", "told"),
    [
        ("small-cnn", r"stacked fleet on \w+: (native|torch|triton)"),
        ("lenet-group-norm", r"stacked fleet on \w+: (lifted|looped), because .+"),
        ("vit-tiny", r"stacked fleet on \w+: (lifted|looped), because .+"),
    ],
)
def test_the_doctor_says_how_a_network_is_computed(hatdfed, tmp_path, network, told):
    findings = json.loads(
        hatdfed("doctor", "--network", network, "--dataset", "synthetic", "--json", cwd=tmp_path).stdout
    )
    (finding,) = [finding for finding in findings if finding["what"] == f"network {network}"]
    assert re.fullmatch(told, finding["detail"])


def test_the_doctor_refuses_a_network_that_does_not_suit_the_data(hatdfed, tmp_path):
    done = hatdfed("doctor", "--network", "lstm", "--dataset", "synthetic", cwd=tmp_path, check=False)
    refused(done, "network lstm is for series")


def test_a_comparison_prints_a_row_for_each_method_and_draws(hatdfed, tmp_path):
    asked = ("--methods", "rnd,local", "--seeds", "2", "--rounds", "2", "--jobs", "1", "--out", "c")
    done = hatdfed("compare", *SMALL, *asked, cwd=tmp_path)
    assert "mean ± sd over 2 seeds" in done.stdout
    assert re.search(r"^ *local .* 0\.0 J", done.stdout, re.MULTILINE)
    names = {path.name for path in (tmp_path / "c").iterdir()}
    assert names >= {
        "comparison.json",
        "accuracy.png",
        "energy.png",
        "accuracy_vs_energy.png",
        "rnd-seed0",
        "local-seed1",
    }


def test_a_method_that_sees_the_test_set_is_marked_and_told(hatdfed, tmp_path):
    done = hatdfed("run", *SMALL, "--method", "hat-dfed-released", "--rounds", "1", cwd=tmp_path)
    assert "sees the test set" in done.stdout
    assert "note: feedback: test" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--set", "link_shar=0.3"], ["'link_shar'", "Did you mean link_share?"]),
        (["--set", "learner.learning_rat=0.3"], ["'learner.learning_rat'", "Did you mean learner.learning_rate?"]),
        (["--method", "hat-dfd"], ["'hat-dfd'", "Did you mean hat-dfed?"]),
        (["--dataset", "digit"], ["'digit'", "Did you mean digits?"]),
        (["--set", "link_share=0"], ["link_share is 0", "greater than 0"]),
        (["--set", "link_share=2"], ["link_share is 2", "less than or equal to 1"]),
        (["--servers", "1"], ["servers is 1", "greater than or equal to 2"]),
        (["--servers", "5000"], ["servers is 5000", "1097 images"]),
        (["--servers", "20", "--set", "disjoint=true"], ["20 servers", "at most 10 servers"]),
        (["--set", "images_per_server=5000"], ["images_per_server is 5000", "1097"]),
        (["--set", "rounds"], ["key=value"]),
        (["--method", "el-oracle", "--servers", "2"], ["policy.degree is 2", "2 servers"]),
        (["--set", "label_concentration=.inf"], ["label_concentration is inf"]),
        (["--set", "gain_share=.nan"], ["gain_share is nan"]),
        (["--set", "energy.link_kbit_per_joule=[.inf, .inf]"], ["energy.link_kbit_per_joule"]),
        (["--dataset", "synthetic", "--set", "dataset_options={side: 6}", "--set", "network=paper-cnn"], ["8×8"]),
        (["--out", "x" * 300], ["Choose another one with --out"]),
        (["--dataset", "fashion-mnist", "--data-dir", "nowhere"], ["nowhere"]),
        (["--dataset", "cifar-10", "--data-dir", "."], ["data_batch_1.bin"]),
        (["missing.yaml"], ["missing.yaml", "cannot be read"]),
        (["--resume", "nothing-here"], ["nothing-here is not a run folder"]),
        (["--out", "/dev/null/run"], ["/dev/null/run", "Choose another one with --out"]),
        (["--set", "policy.name=ringg"], ["Did you mean ring?"]),
        (["--set", "policy.learning_rate=7"], ["policy.learning_rate is 7", "between 0 and 1"]),
        (["--set", "parameters.personal=[haed.*]"], ["parameters.personal has 'haed.*'", "It has 0.weight"]),
        (["--set", "parameters.frozen=['*']"], ["No parameter of the network is left"]),
        (["--set", "parameters.personal=head"], ["parameters.personal"]),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(hatdfed, tmp_path, arguments, expected):
    assert refused(hatdfed("run", *arguments, cwd=tmp_path, check=False), *expected)
    assert not list(tmp_path.glob("runs/*")), "nothing is left that could be in the way"


@pytest.mark.parametrize("content", ["rounds: [1", "- a\n- b\n", "\x00\x01"])
def test_a_config_file_that_is_none_is_refused(hatdfed, tmp_path, content):
    (tmp_path / "bad.yaml").write_text(content)
    assert refused(hatdfed("run", "bad.yaml", cwd=tmp_path, check=False), "bad.yaml")


def test_truncated_data_files_are_refused_by_name(hatdfed, tmp_path):
    folder = tmp_path / "data" / "fashion-mnist"
    folder.mkdir(parents=True)
    for name in (
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ):
        (folder / name).write_bytes(b"\x00\x00\x08\x03" + b"\x00" * 5)
    arguments = ("run", "--dataset", "fashion-mnist", "--data-dir", "data")
    assert refused(hatdfed(*arguments, cwd=tmp_path, check=False), "idx")
    binary = tmp_path / "data" / "cifar-10-batches-bin"
    binary.mkdir()
    for name in (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"):
        (binary / name).write_bytes(b"\x01" * 4000)
    arguments = ("run", "--dataset", "cifar-10", "--data-dir", "data")
    assert refused(hatdfed(*arguments, cwd=tmp_path, check=False), ".bin", "4000")


def test_resuming_a_folder_of_another_config_is_refused_and_nothing_is_lost(hatdfed, tmp_path):
    hatdfed("run", *SMALL, "--rounds", "2", "--out", "run", cwd=tmp_path)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").glob("*.[yj]*")}
    (tmp_path / "other.yaml").write_text("method: rnd\nseed: 3\n")
    done = hatdfed("run", "other.yaml", "--resume", "run", cwd=tmp_path, check=False)
    assert refused(done, "run has method 'hat-dfed', but 'rnd' was asked for")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").glob("*.[yj]*")} == before


def test_a_comparison_refuses_what_it_sets_by_itself(hatdfed, tmp_path):
    done = hatdfed("compare", "--methods", "rnd", "--set", "seed=3", cwd=tmp_path, check=False)
    assert refused(done, "Use --seeds instead")
    impossible = hatdfed("compare", "--methods", "rnd,el-oracle", "--servers", "2", cwd=tmp_path, check=False)
    assert refused(impossible, "policy.degree is 2")
    half = hatdfed(
        "compare", "--methods", "hat-dfed,rnd", "--set", "aggregator.loss_order=x", cwd=tmp_path, check=False
    )
    assert refused(half, "With method rnd, aggregator 'uniform' has no setting 'loss_order'")
    value = hatdfed("compare", "--methods", "hat-dfed", "--set", "aggregator.loss_order=x", cwd=tmp_path, check=False)
    assert refused(value, "aggregator.loss_order is 'x'")
    assert not list(tmp_path.glob("runs/*")), "refused before the first run"
    assert refused(hatdfed("compare", "--methods", ",", cwd=tmp_path, check=False), "names no method")
    assert refused(hatdfed("compare", "--methods", "rnd,rdn", cwd=tmp_path, check=False), "Did you mean rnd?")


def run_with_little_room(cwd, most_bytes, *arguments):
    """A limit on the size of files stands in for a full disk: writes past it fail in the same way."""
    code = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({most_bytes}, {most_bytes})); "
        "from hatdfed.runs.records import database; database.COMMIT_SECONDS = 0.0; "  # however fast rounds are played
        "from hatdfed.cli.app import main; main()"
    )
    command = [sys.executable, "-c", code, "run", *SMALL, "--out", "run", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


def test_a_disk_too_full_for_a_checkpoint_ends_in_one_sentence(hatdfed, tmp_path):
    done = run_with_little_room(tmp_path, 200_000, "--rounds", "5", "--set", "network=small-cnn")
    assert refused(done, "checkpoint.safetensors cannot be written")
    assert not list(Path(tmp_path / "run").glob(".*partial"))


def test_a_disk_that_fills_up_ends_in_one_sentence_and_keeps_what_was_committed(hatdfed, tmp_path):
    done = run_with_little_room(tmp_path, 160_000, "--rounds", "400", "--set", "checkpoint_every=0")
    assert refused(done, "run.sqlite cannot be used")
    shown = hatdfed("show", "run", cwd=tmp_path).stdout
    assert int(re.search(r"(\d+) of 400 rounds completed", shown)[1]) >= 1


def test_a_finish_longer_than_half_the_run_is_cut_and_said(hatdfed, tmp_path):
    finish = ("--set", "schedule.finish_rounds=5", "--set", "schedule.every=4")
    done = hatdfed("run", "--method", "hat-dfed-plus", *SMALL, "--rounds", "4", *finish, "--json", cwd=tmp_path)
    assert "the last 2 rounds have every link" in " ".join(done.stderr.split())
    folder = json.loads(done.stdout)["run_folder"]
    connection = sqlite3.connect(tmp_path / folder / "run.sqlite")
    assert [row[0] for row in connection.execute("SELECT links FROM rounds ORDER BY t")] == [0, 0, 6, 6]
    connection.close()
