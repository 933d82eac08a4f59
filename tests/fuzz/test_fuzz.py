"""A few cases of every target; `make fuzz` tries many more. Hypothesis shrinks what fails here."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzz.harness import DefectError, Tally, Target, make_case, share_out, try_case
from tests.fuzz.targets import TARGETS, quiet_logs

from hatdfed.errors import WireError

CASES = 6


@pytest.fixture(autouse=True)
def no_logs():
    with quiet_logs():
        yield


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_bad_input_is_read_or_refused_in_a_sentence(target, tmp_path):
    tally = Tally()

    @settings(max_examples=CASES, suppress_health_check=list(HealthCheck))
    @given(st.randoms(use_true_random=False))
    def each(rng):
        try_case(target, target.make(rng), tmp_path, tally)

    each()
    for number in range(CASES):
        try_case(target, make_case(target, 0, number), tmp_path, tally)
    assert tally.read + tally.refused >= CASES


@pytest.mark.parametrize(
    ("name", "seed", "number"),
    [("certificate", 0, 5417), ("run-folder", 0, 422), ("run-folder", 1, 674), ("join-request", 1, 2685)],
)
def test_what_was_a_defect_once_is_none(name, seed, number, tmp_path):
    target = next(target for target in TARGETS if target.name == name)
    try_case(target, make_case(target, seed, number), tmp_path, tally := Tally())
    assert tally.read + tally.refused == 1


def attempt(read, most_bytes=10**6, case=b"x"):
    target = Target("made-up", "message", lambda rng: case, read, lambda case: most_bytes)
    tally = Tally()
    try_case(target, case, Path(), tally)
    return tally


def refuse(sentence):
    def read(case, folder):
        raise WireError("word", sentence)

    return read


def test_the_harness_counts_what_is_read_and_what_is_refused():
    assert attempt(lambda case, folder: None).read == 1
    assert attempt(refuse("No.")).refused == 1


@pytest.mark.parametrize("sentence", ["", "Traceback (most recent call last)", "x" * 3000])
def test_a_refusal_must_be_a_sentence(sentence):
    with pytest.raises(DefectError):
        attempt(refuse(sentence))


def test_memory_beyond_what_was_declared_is_a_defect():
    with pytest.raises(DefectError, match="allocated"):
        attempt(lambda case, folder: bytearray(10**6) and None, most_bytes=10**5)


def test_a_case_that_hangs_is_a_defect(monkeypatch):
    monkeypatch.setattr("tests.fuzz.harness.MOST_SECONDS", 0.05)

    def hang(case, folder):
        while True:
            pass

    with pytest.raises(DefectError, match="took more than"):
        attempt(hang)


def test_other_errors_than_sentences_are_raised():
    with pytest.raises(ZeroDivisionError):
        attempt(lambda case, folder: 1 / 0)


def test_all_cases_are_shared_out():
    assert sum(share_out(TARGETS, "message", 1001).values()) == 1001
    assert sum(share_out(TARGETS, "file", 100).values()) == 100
