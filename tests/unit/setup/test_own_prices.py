"""Prices of the user's own for links and training."""

import io
import os

import numpy as np
import pytest
from tests.alone import mailbox_simulation

from hatdfed.data.datasets import load_dataset
from hatdfed.errors import ConfigError
from hatdfed.setup.build.coordinator import make_prices
from hatdfed.setup.layers import resolve
from hatdfed.setup.run_identity import same_world

LINKS = [[0, 5.0, 8.0], [4.5, 0, 2.0], [9.0, 2.5, 0]]
TRAINING = [0.5, 0.0, 0.4]


def settings(**energy):
    fixed = {"dataset": "synthetic", "network": "linear", "servers": 3, "rounds": 2, "validation_images": 100}
    return resolve({"method": "full", **fixed, "energy": energy})


def test_the_ledger_has_the_joules_of_the_lists():
    config = settings(link_joules=LINKS, training_joules=TRAINING, overhead_bits=100)
    dataset = load_dataset("synthetic", options={"train": 600, "validation": 100, "test": 100})
    world = mailbox_simulation(config, dataset)
    plan = world.coordinator.plan(world.coordinator.start(np.zeros(3)))
    report = world.fleet.run_round(plan)
    spent = {(row.cause, row.receiver, row.sender): row.joules for row in report.energy}
    assert spent["link", 0, 2] == pytest.approx(8.0)
    assert spent["link", 2, 0] == pytest.approx(9.0)
    for server, joules in enumerate(TRAINING):
        assert spent["training", server, server] == pytest.approx(joules * report.num_samples[server])


@pytest.mark.parametrize("suffix", [".csv", ".npy"])
def test_files_say_the_same_as_lists(tmp_path, suffix):
    named = {}
    for key, values in {"link_joules": LINKS, "training_joules": TRAINING}.items():
        named[key] = str(tmp_path / f"{key}{suffix}")
        if suffix == ".npy":
            np.save(named[key], np.array(values, dtype=np.float32))
        else:
            np.savetxt(named[key], values, delimiter=",")
    config = settings(**named)
    prices = make_prices(config, bits_per_sample=8, num_params=10)
    np.testing.assert_allclose(prices.link_joules, LINKS, rtol=1e-6)
    np.testing.assert_allclose(prices.compute_joules, TRAINING, rtol=1e-6)


def test_other_prices_are_another_world():
    assert same_world(settings(link_joules=LINKS), settings(link_joules=LINKS))
    assert not same_world(settings(link_joules=LINKS), settings())
    assert not same_world(settings(training_joules=[1, 2, 3]), settings(training_joules=[1, 2, 4]))


@pytest.mark.parametrize(
    ("energy", "told"),
    [
        ({"link_joules": [[0, 1], [1, 0]]}, "2 rows of 2 values, but 3 servers need 3 rows of 3"),
        ({"link_joules": [[0, 1, 1], [1, 0], [1, 1, 0]]}, "3 rows of 2 or 3 values"),
        ({"link_joules": [[0, -1, 1], [1, 0, 1], [1, 1, 0]]}, "greater than or equal to 0"),
        ({"training_joules": [1, 2]}, "2 values, but there are 3 servers"),
        ({"training_joules": [1, float("nan"), 2]}, "finite"),
        ({"training_joules": [1, float("inf"), 2]}, "finite|less than"),
        ({"training_joules": "prices.txt"}, r"\.csv or \.npy"),
        ({"link_joules": "nowhere.csv"}, "cannot be read"),
    ],
)
def test_what_cannot_be_a_price_list_is_refused_in_a_sentence(energy, told):
    with pytest.raises(ConfigError, match=told) as caught:
        settings(**energy)
    assert str(caught.value).startswith("energy.")


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"1,2\n3\n", b"\xff\xfe"])
def test_a_csv_file_without_a_table_of_numbers_is_refused(tmp_path, content):
    (tmp_path / "links.csv").write_bytes(content)
    with pytest.raises(ConfigError, match=r"energy\.link_joules"):
        settings(link_joules=str(tmp_path / "links.csv"))


def test_a_file_of_python_objects_is_not_loaded(tmp_path):
    np.save(tmp_path / "links.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ConfigError, match="nothing but numbers"):
        settings(link_joules=str(tmp_path / "links.npy"))


def make_npy(descr, shape):
    held = io.BytesIO()
    np.lib.format.write_array_header_1_0(held, {"descr": descr, "fortran_order": False, "shape": shape})
    return held.getvalue() + bytes(24)


@pytest.mark.parametrize(
    "content",
    [
        make_npy("<f8", (2**40,)),
        make_npy("<f8", (2**62, 0)),
        make_npy("<M8[s]", (3,)),
        make_npy("<c8", (3,)),
        make_npy([("a", "<f8")], (3,)),
        b"PK\x03\x04",
        b"",
    ],
)
def test_a_file_that_claims_to_be_what_it_is_not_is_refused(tmp_path, content):
    (tmp_path / "mine.npy").write_bytes(content)
    with pytest.raises(ConfigError, match=r"energy\.training_joules: .* must have nothing but numbers"):
        settings(training_joules=str(tmp_path / "mine.npy"))


@pytest.mark.parametrize("suffix", [".csv", ".npy"])
def test_a_pipe_that_never_ends_is_not_waited_for(tmp_path, suffix):
    os.mkfifo(tmp_path / f"mine{suffix}")
    with pytest.raises(ConfigError, match="is not a file with prices"):
        settings(training_joules=str(tmp_path / f"mine{suffix}"))


def test_profiles_and_joules_of_training_exclude_each_other():
    with pytest.raises(ConfigError, match=r"machines\.profiles are both set"):
        resolve({"servers": 3, "energy": {"training_joules": TRAINING}, "machines": {"profiles": ["phone"]}})
