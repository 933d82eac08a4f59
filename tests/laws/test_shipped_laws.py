"""Every built-in plug point passes the laws that ship with hatdfed."""

import dataclasses

import pytest
import torch
from tests.unit.data.datasets.natural_files import copy_fonts

from hatdfed.data.datasets import DATASETS, typefaces
from hatdfed.data.datasets.base import Examples
from hatdfed.fleets.stacked.trial import try_lifting
from hatdfed.server.aggregation import AGGREGATORS
from hatdfed.server.codecs import CODECS
from hatdfed.server.networks import NETWORKS
from hatdfed.testing import AggregatorLaws, CodecLaws, DatasetLaws, NetworkLaws


@pytest.mark.parametrize("name", AGGREGATORS.built_in)
class TestBuiltInAggregators(AggregatorLaws):
    @pytest.fixture(autouse=True)
    def _choose(self, name):
        self.name = name

    def aggregator(self):
        return AGGREGATORS[self.name]()


@pytest.mark.parametrize("name", CODECS.built_in)
class TestBuiltInCodecs(CodecLaws):
    @pytest.fixture(autouse=True)
    def _choose(self, name):
        self.name = name
        self.relative_error = {"float32": 0.0, "float16": 1e-3, "int8": 1e-2, "int4": 0.15}[name]

    def codec(self):
        return CODECS[self.name]


@pytest.mark.parametrize("name", ["digits", "synthetic"])
class TestEmbeddedDatasets(DatasetLaws):
    @pytest.fixture(autouse=True)
    def _choose(self, name):
        self.name = name

    def kind(self):
        return DATASETS[self.name]


class TestTypefacesDrawnFromAFolder(DatasetLaws):
    @pytest.fixture(autouse=True)
    def _draw_from(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr(typefaces, "CHARACTERS", "0AI")
        self.fonts = copy_fonts(tmp_path / "fonts", ("DejaVuSans", "DejaVuSerif", "DejaVuSansMono"))

    def kind(self):
        return dataclasses.replace(typefaces.KIND, load=lambda data_dir: typefaces.load(fonts=str(self.fonts)))


class TestADatasetWithoutItsHighestLabel(DatasetLaws):
    """As the training pool of a rare class may be."""

    def kind(self):
        return dataclasses.replace(DATASETS["synthetic"], load=self._load_without)

    def _load_without(self, data_dir, progress=None):
        dataset = DATASETS["synthetic"].load(data_dir)
        kept = dataset.train.y < dataset.task.num_outputs - 1
        return dataset._replace(train=Examples(dataset.train.x[kept], dataset.train.y[kept]))


@pytest.mark.parametrize("name", NETWORKS.built_in)
class TestBuiltInNetworks(NetworkLaws):
    @pytest.fixture(autouse=True)
    def _choose(self, name):
        self.name = name
        large = name in ("resnet-18-group-norm", "vit-tiny")
        self.shapes = {"lstm": ((6, 3), (12, 1)), "decoder": ((5,), (12,))}.get(
            name, ((1, 8, 8), (1, 28, 28))[: 2 - large]
        )
        self.task = "next-token" if name == "decoder" else "classification"

    def maker(self):
        return NETWORKS[self.name]

    def test_it_can_be_lifted_over_servers(self):
        for shape, learner in self._learners():
            assert try_lifting(learner, self._make_batch(shape), torch.device("cpu")).lifts


class TestLstmOfTokens(NetworkLaws):
    shapes = ((5,), (12,))
    task = "next-token"

    def maker(self):
        return NETWORKS["lstm"]


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar-10"])
def test_the_real_sets_name_settings_that_exist(name):
    class Real(DatasetLaws):
        def kind(self):
            return DATASETS[name]

    Real().test_its_defaults_are_settings_that_exist()
    Real().test_it_says_where_it_is_without_failing()
