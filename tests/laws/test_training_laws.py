"""Every built-in training policy passes the laws that ship with hatdfed."""

import pytest

from hatdfed.core.training import TRAINING
from hatdfed.core.training.skip_train import SkipTrain
from hatdfed.testing import TrainingPolicyLaws


@pytest.mark.parametrize("name", TRAINING.built_in)
class TestBuiltInTraining(TrainingPolicyLaws):
    @pytest.fixture(autouse=True)
    def _choose(self, name):
        self.name = name

    def policy(self):
        return TRAINING[self.name]()


class TestSkipTrainWithABudget(TrainingPolicyLaws):
    def policy(self):
        return SkipTrain(train_rounds=2, sync_rounds=1, budget_rounds=10)


class TestGreedyTraining(TrainingPolicyLaws):
    def policy(self):
        return SkipTrain(sync_rounds=0, budget_rounds=(3, 10), spread=False)


def test_the_training_policies_of_the_package_are_found_by_their_names():
    assert set(TRAINING.built_in) >= {"always", "by-price", "every", "marginal-gain", "skip-train"}
