"""ε by hand, and in the results of a private run."""

import json
import math

import pytest
from tests.small_runs import SMALL

import hatdfed
from hatdfed.cli.show import show_command
from hatdfed.errors import ConfigError
from hatdfed.runs.privacy_loss import compute_epsilon, count_rounds_trained, describe_privacy, format_privacy
from hatdfed.setup.layers import resolve
from hatdfed.setup.notes import collect_notes

PRIVATE = {**SMALL, "method": "rnd", "privacy": {"clip": 1.0, "noise": 4.0}}


def test_epsilon_is_what_one_computes_by_hand():
    # ρ = 8 / (2 · 4²) = 0.25; ε = 0.25 + 2 · √(0.25 · ln 10⁵) = 0.25 + √(11.5129…)
    assert compute_epsilon(8, 4.0, 1e-5) == pytest.approx(0.25 + math.sqrt(11.512925464970229))
    assert compute_epsilon(8, 4.0, 1e-5) == pytest.approx(3.6431, abs=1e-4)
    assert compute_epsilon(0, 4.0, 1e-5) == 0
    assert compute_epsilon(1, 0.0, 1e-5) == math.inf


def test_every_pass_of_every_round_in_which_a_server_trained_counts():
    config = resolve({**PRIVATE, "local_passes": 2})
    rows = [{"server": 0, "num_samples": 9}] * 4 + [{"server": 1, "num_samples": 0}, {"server": 2, "num_samples": 1}]
    trained = count_rounds_trained(rows, 3)
    assert trained == [4, 0, 1]
    told = describe_privacy(config, trained)
    assert told["epsilon_by_server"] == [compute_epsilon(8, 4.0, 1e-5), 0.0, compute_epsilon(2, 4.0, 1e-5)]
    assert told["epsilon"] == compute_epsilon(8, 4.0, 1e-5)
    assert "ε ≤ 3.64 at δ = 1e-05" in format_privacy(told)


@pytest.mark.parametrize(("noise", "trained"), [(0.0, [3, 3]), (1.0, [3, None])])
def test_no_epsilon_is_claimed_where_none_is_known(noise, trained):
    told = describe_privacy(resolve({**PRIVATE, "privacy": {"clip": 1.0, "noise": noise}}), trained)
    assert told["epsilon"] is None
    json.dumps(told, allow_nan=False)
    assert "no ε is known" in format_privacy(told)


def test_a_private_run_tells_its_epsilon(tmp_path, capsys):
    result = hatdfed.run(PRIVATE, out=tmp_path / "run")
    assert result.summary["computed_by"]["fleet"] == "stacked"
    assert result.summary["computed_by"]["kernels"] == "looped"
    expected = compute_epsilon(2 * 3, 4.0, 1e-5)
    assert result.summary["privacy"]["epsilon_by_server"] == [expected] * 3
    assert any("one by one, because privacy.clip is set" in note for note in result.summary["notes"])
    assert json.loads((tmp_path / "run" / "results.json").read_text())["privacy"]["epsilon"] == expected
    show_command(tmp_path / "run", as_json=False)
    assert f"ε ≤ {expected:.3g} at δ = 1e-05" in capsys.readouterr().out
    again = hatdfed.run(PRIVATE)
    assert again.summary["accuracy_by_server"] == result.summary["accuracy_by_server"]


def test_a_run_without_privacy_tells_nothing():
    assert "privacy" not in hatdfed.run(PRIVATE, privacy={"clip": None}).summary


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"network": "small-cnn"}, r"small-cnn has BatchNorm2d.*Use network small-cnn-group-norm"),
        ({"privacy": {"clip": 0.0}}, r"privacy\.clip is 0\.0, but must be greater than 0"),
        ({"privacy": {"clip": 1.0, "noise": -1}}, r"privacy\.noise is -1"),
        ({"privacy": {"clip": 1.0, "delta": 1}}, r"privacy\.delta is 1"),
    ],
)
def test_what_cannot_be_private_is_refused_in_a_sentence(more, sentence):
    with pytest.raises(ConfigError, match=sentence):
        hatdfed.run(PRIVATE, **more)


def test_a_private_run_is_the_same_in_both_fleets():
    stacked, mailbox = (hatdfed.run(PRIVATE, fleet=fleet, device="cpu") for fleet in ("stacked", "mailbox"))
    assert stacked.summary["accuracy_by_server"] == mailbox.summary["accuracy_by_server"]


def test_clipping_without_noise_is_told():
    notes = collect_notes(resolve({**PRIVATE, "privacy": {"clip": 1.0, "noise": 0.0}}))
    assert any("nothing is protected" in note for note in notes)
