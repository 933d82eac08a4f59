"""What a cluster must have, and the sentences about what it has not."""

import pytest
from tests.small_runs import Told, config

from hatdfed.errors import ClusterError, ConfigError, MissingDependencyError
from hatdfed.fleets.sharded import ray_connection as connection
from hatdfed.fleets.sharded import ray_connection as knock
from hatdfed.fleets.sharded.ray_nodes import Need, Node, compare_versions, places
from hatdfed.runs.play import Job
from hatdfed.setup.build.placement import Placement
from hatdfed.sweeps.executors.ray import RayExecutor, lost_reason, worker_placement
from hatdfed.version import __version__

SMALL, LARGE = Node("a", "10.0.0.1", 2, 0), Node("b", "10.0.0.2", 16, 2)


@pytest.mark.parametrize(
    ("need", "count"),
    [(Need(1), 18), (Need(3), 5), (Need(0.1), 180), (Need(1, 0.25), 8), (Need(4, 0.5), 4), (Need(1, 2), 1)],
)
def test_batches_share_cpus_and_parts_of_gpus(need, count):
    assert places([SMALL, LARGE], need) == count


def test_what_fits_nowhere_is_refused_at_once():
    with pytest.raises(ClusterError, match=r"needs 4 CPUs and 1 GPUs, and no machine .* has so many"):
        places([Node("a", "10.0.0.1", 8, 0), Node("b", "10.0.0.2", 2, 4)], Need(4, 1))  # one has CPUs, the other GPUs


@pytest.mark.parametrize("wrong", [(0.0, 0.0), (1.0, -1.0), (1.0, 1.5)])
def test_a_batch_needs_something_that_exists(wrong):
    with pytest.raises(ConfigError, match="GPUs"):
        Need(*wrong)


def test_a_machine_with_another_hatdfed_is_named():
    compare_versions("10.0.0.2", {"hatdfed": __version__, "torch": "some"})
    with pytest.raises(ClusterError, match=rf"10\.0\.0\.2 .* has hatdfed 9\.9, this one has {__version__}"):
        compare_versions("10.0.0.2", {"hatdfed": "9.9", "torch": "some"})
    with pytest.raises(ClusterError, match="has no hatdfed"):
        compare_versions("10.0.0.2", {"hatdfed": None, "torch": "some"})
    with pytest.raises(ClusterError, match="has no torch"):
        compare_versions("10.0.0.2", {"hatdfed": __version__, "torch": None})


def test_a_batch_is_computed_on_a_gpu_only_where_it_is_given_one():
    assert worker_placement(Placement(), Need(1, 0)) == Placement("auto", "cpu")
    assert worker_placement(Placement(), Need(1, 0.5)) == Placement("auto", "cuda")
    assert worker_placement(Placement("mailbox"), Need(1, 0.5)) == Placement("mailbox", "cpu")
    with pytest.raises(ConfigError, match="gets no GPU"):
        worker_placement(Placement("stacked", "cuda"), Need(1, 0))


def test_without_ray_the_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'hatdfed\[ray\]'"):
        Told().play(RayExecutor(), {0: Job(config())})


def test_nobody_at_the_address_is_known_within_seconds():
    with pytest.raises(ClusterError, match=r"No Ray cluster can be reached at 127\.0\.0\.1:9"):
        knock.knock("127.0.0.1:9")


@pytest.mark.parametrize("address", ["nowhere", "host:", ":6379", "host:port", "ray://host:10001"])
def test_an_address_must_be_one(address):
    with pytest.raises(ConfigError, match="must be HOST:PORT or auto"):
        connection._join(None, address)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("W gcs_client.cc: Unauthenticated: RPC error: InvalidAuthToken: …", "refuses this machine's token"),
        ("ray.exceptions.AuthenticationError: Token authentication is enabled but no …", "wants a token"),
        ("RuntimeError: Version mismatch: The cluster was started with:\n Ray: 2.59.0", "started with: Ray: 2.59.0"),
        ("Failed to connect to GCS at address …", "is no Ray cluster"),
        ("", "is no Ray cluster"),
        ("Traceback …\nOSError: something else", "OSError: something else"),
    ],
)
def test_what_ray_says_in_many_lines_is_one_sentence(said, sentence):
    assert sentence in knock.reason("10.0.0.1:6379", said)


def test_reasons_for_lost_tasks():
    assert "was lost" in lost_reason(type("NodeDiedError", (Exception,), {})())
    assert "out of memory" in lost_reason(type("OutOfMemoryError", (Exception,), {})())
    assert lost_reason(ConfigError("As it is.")) == "As it is."
    assert "ValueError: odd" in lost_reason(ValueError("odd"))


def test_a_token_of_our_own_is_for_its_owner_only(monkeypatch):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    settings = connection._authentication(is_own=True)
    token = connection.Path(settings["RAY_AUTH_TOKEN_PATH"])
    assert settings["RAY_AUTH_MODE"] == "token"
    assert token.stat().st_mode & 0o777 == 0o600
    assert token.parent.stat().st_mode & 0o777 == 0o700
    assert len(token.read_text()) == 64
    assert connection._authentication(is_own=False) == {}
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "somewhere")
    assert connection._authentication(is_own=True) == {"RAY_AUTH_MODE": "token"}
