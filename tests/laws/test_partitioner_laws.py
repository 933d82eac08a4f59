"""Every built-in partitioner keeps the laws."""

import pytest

from hatdfed.data.partitioners import PARTITIONERS, Dirichlet, LabelSkew
from hatdfed.testing import PartitionerLaws


@pytest.mark.parametrize("name", PARTITIONERS.built_in)
class TestBuiltInPartitioners(PartitionerLaws):
    @pytest.fixture(autouse=True)
    def _choose(self, name):
        self.name = name

    def partitioner(self):
        return PARTITIONERS[self.name]()


class TestDirichletByServer(PartitionerLaws):
    def partitioner(self):
        return Dirichlet(by="server")


class TestLabelSkewWithoutCommonSamples(PartitionerLaws):
    sizes = (2, 5)

    def partitioner(self):
        return LabelSkew(disjoint=True)
