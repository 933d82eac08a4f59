"""What tasks make of outputs and targets: by hand, and by the laws that hold for all of them."""

import math
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from hatdfed.core.task import IGNORED, TaskKind
from hatdfed.errors import ConfigError
from hatdfed.server.learner import Learner
from hatdfed.server.optimisers import Adam
from hatdfed.server.tasks import TASKS, Classification, make_task
from hatdfed.server.work import Batch

KINDS = {
    "classification": TaskKind("classification", 5),
    "next-token": TaskKind("next-token", 5),
    "regression": TaskKind("regression", 2, (10.0, 0.0), (2.0, 3.0)),
    "multi-label": TaskKind("multi-label", 4),
}


def draw(name, count=12, seed=0):
    """Outputs and targets of a task."""
    rng = torch.Generator().manual_seed(seed)
    if name == "classification":
        return torch.randn(count, 5, generator=rng), torch.randint(5, (count,), generator=rng)
    if name == "next-token":
        return torch.randn(count, 7, 5, generator=rng), torch.randint(5, (count, 7), generator=rng)
    if name == "regression":
        return torch.randn(count, 2, generator=rng), torch.randn(count, 2, generator=rng)
    return torch.randn(count, 4, generator=rng), (torch.rand(count, 4, generator=rng) < 0.4).float()


def perfect(name, targets):
    """Outputs that are right and sure."""
    if name in ("classification", "next-token"):
        return 50.0 * F.one_hot(targets, 5)
    return targets if name == "regression" else 100 * (targets - 0.5)


@pytest.mark.parametrize("name", KINDS)
def test_scores_lie_between_0_and_1_and_a_perfect_model_has_1(name):
    task, (outputs, targets) = make_task(KINDS[name]), draw(name)
    scores = task.scores(outputs, targets).double()
    assert scores.shape == (12,)
    assert ((scores >= 0) & (scores <= 1)).all()
    assert scores.std() > 0
    best = perfect(name, targets)
    assert (task.scores(best, targets) == 1).all()
    assert (task.losses(best, targets) < task.losses(outputs, targets)).all()


@pytest.mark.parametrize("name", KINDS)
def test_a_model_that_is_no_number_has_no_score(name):
    task, (outputs, targets) = make_task(KINDS[name]), draw(name)
    scores = task.scores(torch.full_like(outputs, torch.nan), targets).double()
    assert ((scores >= 0) & (scores <= 1)).all()


@pytest.mark.parametrize("name", KINDS)
def test_samples_count_by_themselves_and_can_be_lifted_over_servers(name):
    task = make_task(KINDS[name])
    outputs, targets = (torch.stack(parts) for parts in zip(*(draw(name, seed=seed) for seed in range(3)), strict=True))
    for function in (task.losses, task.scores, task.measure):
        together = torch.vmap(function)(outputs, targets)
        for server in range(3):
            torch.testing.assert_close(together[server], function(outputs[server], targets[server]))
            one = function(outputs[server, 4:5], targets[server, 4:5])
            torch.testing.assert_close(together[server, 4:5], one)


@pytest.mark.parametrize("name", KINDS)
def test_measures_and_metrics_have_the_names_that_the_task_says(name):
    task, (outputs, targets) = make_task(KINDS[name]), draw(name)
    measures = task.measure(outputs, targets)
    assert measures.shape == (12, len(task.measures))
    assert tuple(task.summarise(measures.mean(dim=0).tolist())) == task.metrics


@pytest.mark.parametrize("name", KINDS)
def test_a_guess_has_about_the_loss_that_the_task_says(name):
    task, (outputs, targets) = make_task(KINDS[name]), draw(name, count=4000)
    loss = float(task.losses(torch.zeros_like(outputs), targets).mean())
    assert loss == pytest.approx(task.guess_loss, rel=0.05)


def test_classification_trains_with_the_same_bits_as_torchs_own_mean():
    logits, labels = draw("classification")
    offset = torch.randn(5)
    gradients = []
    for loss in (
        lambda x: Classification().losses(x, labels, offset).mean(),
        lambda x: F.cross_entropy(x + offset, labels),
    ):
        x = logits.clone().requires_grad_()
        gradients += torch.autograd.grad(loss(x), x)
    assert torch.equal(*gradients)


def test_tokens_that_are_ignored_count_nowhere():
    task = make_task(KINDS["next-token"])
    outputs, targets = draw("next-token")
    shorter = targets.clone()
    shorter[:, 4:] = IGNORED
    for function in (task.losses, task.scores):
        torch.testing.assert_close(function(outputs, shorter), function(outputs[:, :4], targets[:, :4]))
    nothing = torch.full_like(targets, IGNORED)
    assert (task.losses(outputs, nothing) == 0).all()


def test_perplexity_is_that_of_the_mean_loss_of_a_token():
    task = make_task(KINDS["next-token"])
    outputs, targets = torch.zeros(3, 7, 5), draw("next-token", count=3)[1]
    means = task.measure(outputs, targets).mean(dim=0).tolist()
    assert task.summarise(means)["perplexity"] == pytest.approx(5)
    assert math.isfinite(task.summarise([1e9])["perplexity"])


def test_errors_of_a_regression_are_in_the_units_of_the_data():
    task = make_task(TaskKind("regression", 1, (100.0,), (20.0,)))
    outputs, targets = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.5], [-1.0]])
    metrics = task.summarise(task.measure(outputs, targets).mean(dim=0).tolist())
    assert metrics == pytest.approx({"rmse": 20 * math.sqrt(2.125), "mae": 25.0, "r2": 1 - 2.125})


def test_the_mean_score_of_a_regression_is_a_function_of_r2_while_errors_are_small():
    task = make_task(TaskKind("regression", 1, (0.0,), (1.0,)))
    targets = torch.randn(500, 1, generator=torch.Generator().manual_seed(1))
    outputs = targets + 0.5 * torch.rand(500, 1, generator=torch.Generator().manual_seed(2))
    r2 = task.summarise(task.measure(outputs, targets).mean(dim=0).tolist())["r2"]
    assert float(task.scores(outputs, targets).mean()) == pytest.approx(1 - (1 - r2) / 4)
    assert float(task.scores(targets + 2.01, targets).mean()) == 0


def test_a_set_of_labels_is_scored_by_what_it_shares_with_the_true_one():
    task = make_task(TaskKind("multi-label", 3))
    targets = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    said = torch.tensor([[9.0, -9.0, 9.0], [-9.0, -9.0, -9.0], [9.0, -9.0, -9.0], [-9.0, 9.0, -9.0]])
    np.testing.assert_allclose(task.scores(said, targets), [1 / 3, 1, 0, 1])
    metrics = task.summarise(task.measure(said, targets).mean(dim=0).tolist())
    assert metrics["micro_f1"] == pytest.approx(2 * 2 / (2 * 2 + 3))


def test_an_unknown_task_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"task is 'regresion', .* Did you mean regression"):
        make_task(TaskKind("regresion", 1))
    assert set(TASKS) == set(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_a_learner_minimises_the_loss_of_its_task(name):
    outputs, targets = draw(name, count=40)
    size = outputs[0].numel()
    head = [nn.Unflatten(1, outputs.shape[1:])] if outputs.ndim == 3 else []
    maker = partial(nn.Sequential, nn.Linear(6, size), *head)
    learner = Learner(maker, Adam(learning_rate=0.05), task=make_task(KINDS[name]))
    batch = Batch(torch.randn(40, 6, generator=torch.Generator().manual_seed(3)), targets)
    params, state = learner.init(0), learner.optimiser.init(learner.num_trainable)
    after, _ = learner.fit(params, state, [batch] * 60, seed=0)
    assert learner.losses(after, batch).mean() < 0.9 * learner.losses(params, batch).mean()
    measured = learner.measure(after, batch)
    assert learner.accuracy(after, batch) == pytest.approx(float(measured.scores.double().mean()))
