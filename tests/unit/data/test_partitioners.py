import re
from pathlib import Path

import numpy as np
import pytest

import hatdfed
from hatdfed.core.task import CLASSIFICATION, NEXT_TOKEN, REGRESSION, TaskKind
from hatdfed.data.datasets import DATASETS
from hatdfed.data.partition import draw_label_skewed_shards
from hatdfed.data.partitioners import PARTITIONERS, Dirichlet, Groups, Iid, LabelSkew, Shards, TrainingSamples
from hatdfed.errors import ConfigError
from hatdfed.setup.build.world import make_world
from hatdfed.setup.run_identity import same_world
from hatdfed.testing import PartitionerLaws

LABELS = np.repeat(np.arange(10), 200)
CLASSES = TaskKind(CLASSIFICATION, 10)


def samples(num_servers=5, each=400, y=LABELS, task=CLASSES):
    return TrainingSamples(y, None, task, [each] * num_servers)


def label_shares(parts):
    counts = np.stack([np.bincount(LABELS[part], minlength=10) for part in parts])
    return counts / counts.sum(axis=1, keepdims=True)


def test_the_paper_s_split_is_what_it_was():
    one = LabelSkew(label_concentration=0.5).split(samples(each=100), seed=3)
    two = draw_label_skewed_shards(LABELS, seed=3, num_servers=5, images_per_server=100, label_concentration=0.5)
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_iid_divides_everything_and_all_servers_have_all_labels_alike():
    parts = Iid().split(samples(), seed=1)
    assert sorted(np.concatenate(parts)) == list(range(2000))
    assert np.abs(label_shares(parts) - 0.1).max() < 0.06


def test_where_samples_are_few_everybody_gets_less_in_proportion():
    parts = Iid().split(samples()._replace(amounts=[1000, 3000]), seed=1)
    assert [len(part) for part in parts] == [500, 1500]


def test_where_samples_are_many_a_random_part_of_them_is_split():
    for partitioner in (Iid(), Shards(), Dirichlet(), Dirichlet(by="server")):
        owned = np.concatenate(partitioner.split(samples(each=60), seed=1))
        assert len(owned) == 300
        assert len(np.unique(LABELS[owned])) == 10


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_a_server_with_k_shards_has_at_most_two_labels_for_each(shards):
    parts = Shards(shards_per_server=shards).split(samples(), seed=2)
    assert {len(part) for part in parts} == {len(LABELS) // 5} or shards == 3
    assert max(len(np.unique(LABELS[part])) for part in parts) <= 2 * shards
    assert sorted(np.concatenate(parts)) == list(range(2000))


def test_as_many_shards_as_labels_give_every_server_its_own_labels():
    parts = Shards(shards_per_server=2).split(samples(), seed=2)  # 10 shards of 200, one for each label
    assert [len(np.unique(LABELS[part])) for part in parts] == [2] * 5


def test_dirichlet_by_label_gives_each_label_to_few_servers_and_unequal_amounts():
    parts = Dirichlet(label_concentration=0.1).split(samples(), seed=0)
    counts = np.stack([np.bincount(LABELS[part], minlength=10) for part in parts])
    np.testing.assert_array_equal(counts.sum(axis=0), 200)
    assert (counts.max(axis=0) / 200).mean() > 0.6  # most of a label is at one server
    assert len({len(part) for part in parts}) > 1


def test_dirichlet_by_server_gives_equal_amounts():
    parts = Dirichlet(by="server", label_concentration=0.1).split(samples(each=100), seed=0)
    assert [len(part) for part in parts] == [100] * 5
    assert label_shares(parts).max(axis=1).mean() > 0.5


@pytest.mark.parametrize("by", ["label", "server"])
def test_a_large_concentration_makes_servers_alike(by):
    parts = Dirichlet(by=by, label_concentration=1e4).split(samples(each=200), seed=0)
    assert np.abs(label_shares(parts) - 0.1).max() < 0.07


def test_every_server_has_the_least_number_of_samples():
    for seed in range(5):
        parts = Dirichlet(label_concentration=0.2, min_samples=100).split(samples(), seed=seed)
        assert min(map(len, parts)) >= 100


def test_a_regression_is_split_by_deciles_of_its_target():
    values = np.random.default_rng(0).normal(size=1000)
    parts = Shards(shards_per_server=1).split(samples(y=values, task=TaskKind(REGRESSION, 1)), seed=0)
    spread = [np.ptp(values[part]) for part in parts]
    assert min(spread) < 0.5 * np.ptp(values)


@pytest.mark.parametrize(
    ("split", "given", "told"),
    [
        (lambda: Shards(shards_per_server=0), None, "split_options.shards_per_server is 0"),
        (lambda: Dirichlet(by="sample"), None, "split_options.by is 'sample'"),
        (lambda: Dirichlet(min_samples=0), None, "split_options.min_samples is 0"),
        (Shards, {"each": 1, "num_servers": 5}, "need 10 shards, but there are 5 samples"),
        (Dirichlet, {"each": 9}, "45 samples are 9 for each of 5 servers. Use at most 9"),
        (lambda: Dirichlet(label_concentration=1e-3), {"num_servers": 11}, "In none of 1000 draws"),
        (Iid, {"num_servers": 2001}, "servers is 2001, but the training pool has only 2000 samples"),
        (Shards, {"task": TaskKind(NEXT_TOKEN, 9)}, "split is shards, but sequences of tokens have no label"),
        (Dirichlet, {"task": TaskKind(NEXT_TOKEN, 9)}, "split is dirichlet, but sequences of tokens have no label"),
        (Groups, {}, "does not say whom its samples come from"),
    ],
)
def test_what_cannot_be_split_is_refused_in_a_sentence(split, given, told):
    with pytest.raises(ConfigError, match=told):
        split().split(samples(**(given or {})), seed=0)


def test_runs_meet_the_split_they_name_and_two_splits_are_two_worlds(tmp_path):
    small = {"servers": 3, "rounds": 1, "images_per_server": 60, "validation_images": 50}
    two = [hatdfed.resolve({**small, "split": "shards", "split_options": {"shards_per_server": k}}) for k in (1, 2)]
    assert not same_world(*two)
    assert same_world(two[0], hatdfed.resolve({**two[0].model_dump(), "method": "local"}))
    dataset = DATASETS["digits"].load(None)
    counts = [[int((s.label_counts_at(0) > 0).sum()) for s in make_world(each, dataset).sources] for each in two]
    assert max(counts[0]) <= 5
    assert sum(counts[0]) < sum(counts[1])


def test_the_partitioner_of_the_docs_keeps_the_laws_and_plays_a_run(monkeypatch):
    monkeypatch.setattr(PARTITIONERS, "_loaded", dict(PARTITIONERS._loaded))
    page = Path(__file__).parents[3] / "docs" / "worlds.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    exec(code, {"__name__": "my_split"})  # noqa: S102 (it is the document)

    class Laws(PartitionerLaws):
        def partitioner(self):
            return PARTITIONERS["one-label-missing"]()

    laws = Laws()
    for name in dir(laws):
        if name.startswith("test_"):
            getattr(laws, name)()
    config = hatdfed.resolve({"split": "one-label-missing", "servers": 4, "images_per_server": 100})
    sources = make_world(config, DATASETS["digits"].load(None)).sources
    assert [int(source.label_counts_at(0)[i]) for i, source in enumerate(sources)] == [0] * 4


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ([[0], [1]], "made 2 parts, but there are 3 servers"),
        ([[0], [], [1]], "leaves server 1 without a sample"),
        ([[0], [1], [10**6]], "gives server 2 samples 1000000 to 1000000, but the training pool has 0 to"),
    ],
)
def test_a_wrong_split_of_an_own_partitioner_is_refused(parts, told, monkeypatch):
    monkeypatch.setattr(Iid, "split", lambda self, samples, seed: [np.array(part, dtype=int) for part in parts])
    with pytest.raises(ConfigError, match=told):
        make_world(hatdfed.resolve({"split": "iid", "servers": 3}), DATASETS["digits"].load(None))
