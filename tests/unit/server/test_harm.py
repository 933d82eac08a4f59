"""Harm: what a server's own data say about a received model, and the merge that goes by it."""

import math

import numpy as np
import pytest
import torch

from hatdfed.core.policies.trusted_links import LEAST_EVIDENCE
from hatdfed.errors import ConfigError
from hatdfed.randomness import stream
from hatdfed.server.aggregation import HarmlessMean, Inbox, Probe
from hatdfed.server.harm import SHARE_STEPS, find_relevance, measure_harm, share_labels

GUESS = math.log(10)


def random_probe(models=5, samples=20, seed=0):
    rng = stream(seed, "probe")
    relevance = rng.choice([0.0, 0.01, 0.05, 0.3, 1.0], size=(models, samples))
    relevance[0] = 1.0
    losses, valid = rng.uniform(0, 4, (models, samples)), rng.random(samples) < 0.8
    losses, relevance = (torch.tensor(values, dtype=torch.float32) for values in (losses, relevance))
    return Probe(losses, torch.tensor(valid), relevance)


def probe_of(losses, relevance=None):
    """Every model has one loss on each of 12 samples; `relevance` says how much they count, model by model."""
    losses = torch.tensor(losses)[:, None].expand(-1, 12).clone()
    weights = torch.ones(len(losses)) if relevance is None else torch.tensor(relevance)
    return Probe(losses, torch.ones(12, dtype=torch.bool), weights[:, None].expand(-1, 12).clone())


def measured_by_loop(probe):
    losses, valid, relevance = (tensor.double().numpy() for tensor in probe)
    right, known = np.exp(-losses), np.flatnonzero(valid)
    knowledge = (right[0, known].mean() - 0.1) / 0.9
    harm, evidence = [], []
    for model in range(len(losses)):
        total = squares = excess = most = 0.0
        for sample in known:
            if relevance[model, sample] < 0.02:
                continue
            weight = min(relevance[model, sample], 0.1)
            total, squares, most = total + weight, squares + weight**2, max(most, weight)
            excess += weight * (right[0, sample] - right[model, sample])
        harm.append(excess / total / (0.9 * max(knowledge, 0.1)) if total else 0.0)
        evidence.append(total**2 / squares * min(1.0, most / 0.1) if total else 0.0)
    return np.clip(harm, -10, 10), np.array(evidence), np.full(len(losses), knowledge)


@pytest.mark.parametrize("seed", range(4))
def test_harm_evidence_and_knowledge_are_what_a_plain_loop_finds(seed):
    probe = random_probe(seed=seed)
    for found, expected in zip(measure_harm(probe, GUESS), measured_by_loop(probe), strict=True):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_the_own_model_does_no_harm():
    judged = measure_harm(random_probe(), GUESS)
    assert judged.harm[0] == 0


def test_a_model_that_loses_all_that_is_known_has_harm_one():
    judged = measure_harm(probe_of([-math.log(0.82), GUESS]), GUESS)
    assert float(judged.knowledge[1]) == pytest.approx(0.8)
    assert float(judged.harm[1]) == pytest.approx(1.0)


def test_a_model_that_is_surely_wrong_is_worse_than_a_guess_and_not_without_bound():
    judged = measure_harm(probe_of([-math.log(0.82), 1000.0]), GUESS)
    assert float(judged.harm[1]) == pytest.approx(0.82 / 0.72)


def test_a_few_samples_on_which_it_is_surely_wrong_do_not_decide():
    probe = probe_of([-math.log(0.82), -math.log(0.8)])
    probe.losses[1, 0] = 50.0
    assert measure_harm(probe, GUESS).harm[1] < 0.2


def test_ignorance_does_not_count():
    """Bad on a label that its sender does not have, as good as the own model on the other."""
    probe = probe_of([0.5, 0.5])
    probe.losses[1, 6:] = 9.0
    probe.relevance[1, 6:] = 0.0
    judged = measure_harm(probe, GUESS)
    assert judged.harm[1] == 0
    assert float(judged.evidence[1]) == pytest.approx(6)


def test_the_same_losses_on_labels_that_the_sender_has_do_count():
    probe = probe_of([0.5, 0.5])
    probe.losses[1, 6:] = 9.0
    assert measure_harm(probe, GUESS).harm[1] > 0.5


def test_without_common_labels_nothing_is_said():
    judged = measure_harm(probe_of([0.5, 9.0], relevance=[1.0, 0.0]), GUESS)
    assert judged.evidence[1] == 0
    assert judged.harm[1] == 0


def test_a_label_of_which_the_sender_has_little_is_less_evidence():
    few, many = (float(measure_harm(probe_of([0.5, 9.0], [1.0, share]), GUESS).evidence[1]) for share in (0.05, 0.5))
    assert few == pytest.approx(6)
    assert many == pytest.approx(12)


def test_who_knows_only_the_label_that_it_has_most_of_is_found_out():
    """Such as a model that always says the same label: labels that a sender has enough of count alike."""
    probe = probe_of([0.1, 0.1])
    probe.losses[1, 4:] = 9.0  # 4 samples of its first label, of which it has most, and 8 of two others
    probe.relevance[1, :4], probe.relevance[1, 4:] = 0.7, 0.15
    assert float(measure_harm(probe, GUESS).harm[1]) == pytest.approx(
        2 / 3 * math.exp(-0.1) / (math.exp(-0.1) - 0.1), abs=0.01
    )


def test_padding_does_not_count():
    probe = random_probe()
    wide = Probe(
        torch.cat([probe.losses, torch.full((5, 3), 100.0)], dim=1),
        torch.cat([probe.valid, torch.zeros(3, dtype=torch.bool)]),
        torch.cat([probe.relevance, torch.ones(5, 3)], dim=1),
    )
    for found, expected in zip(measure_harm(wide, GUESS), measure_harm(probe, GUESS), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_the_largest_harm(value):
    probe = probe_of([0.5, 0.5, 0.6])
    probe.losses[1, 3] = value
    judged = measure_harm(probe, GUESS)
    assert judged.harm[1] == judged.harm.max() == 10
    assert judged.harm[2] < 0.2


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_on_a_label_that_does_not_count_is_no_harm(value):
    probe = probe_of([0.5, 0.5])
    probe.losses[1, 3], probe.relevance[1, 3] = value, 0.0
    assert measure_harm(probe, GUESS).harm[1] == 0


def test_a_server_that_knows_nothing_does_not_divide_by_nothing():
    judged = measure_harm(probe_of([GUESS, -math.log(0.01)]), GUESS)
    assert float(judged.knowledge[0]) == pytest.approx(0, abs=1e-6)
    assert float(judged.harm[1]) == pytest.approx(0.09 / (0.1 * 0.9), rel=1e-4)


def test_a_server_worse_than_a_guess_has_negative_knowledge():
    assert measure_harm(probe_of([2 * GUESS, 1.0]), GUESS).knowledge[0] == pytest.approx(-0.1)


def test_without_label_shares_every_sample_counts():
    probe = random_probe()._replace(relevance=None)
    judged = measure_harm(probe, GUESS)
    np.testing.assert_allclose(judged.evidence.numpy(), float(probe.size), rtol=1e-6)


def test_many_servers_at_once_are_the_same_as_one_by_one():
    probes = [random_probe(seed=seed) for seed in range(3)]
    stacked = Probe(*(torch.stack(parts) for parts in zip(*probes, strict=True)))
    together = torch.vmap(lambda probe: measure_harm(probe, GUESS))(stacked)
    for server, probe in enumerate(probes):
        for found, expected in zip(together, measure_harm(probe, GUESS), strict=True):
            torch.testing.assert_close(found[server], expected)


def test_label_shares_come_back_to_half_a_step():
    counts = torch.tensor([300, 100, 57, 0, 43])
    shares = share_labels(counts)
    assert shares.dtype == torch.uint8
    np.testing.assert_allclose(shares.numpy() / SHARE_STEPS, counts.numpy() / 500, atol=0.5 / SHARE_STEPS)


def test_a_label_that_is_there_has_a_share_and_one_that_is_not_has_none():
    assert share_labels(torch.tensor([100_000, 1, 0])).tolist() == [255, 1, 0]


def test_a_server_without_images_shares_no_label():
    assert share_labels(torch.zeros(4, dtype=torch.int64)).tolist() == [0, 0, 0, 0]


def test_relevance_is_the_senders_share_of_each_samples_label():
    shares = torch.stack([share_labels(torch.tensor(counts)) for counts in ([1, 1, 2], [3, 0, 1], [0, 4, 0])])
    relevance = find_relevance(shares, torch.tensor([0, 2, 2, 1]))
    assert relevance[0].tolist() == [1, 1, 1, 1]
    np.testing.assert_allclose(relevance[1], [0.75, 0.25, 0.25, 0], atol=0.5 / SHARE_STEPS)
    np.testing.assert_allclose(relevance[2], [0, 0, 0, 1], atol=0.5 / SHARE_STEPS)


OWN, GOOD, BAD = 0.3, 0.4, 3.0  # losses; the second is 11 % harm, the third 108 %


def inbox(slots, mixing=None, present=None):
    """Model i is filled with i + 1."""
    return Inbox(
        models=torch.arange(1.0, slots + 1)[:, None].expand(-1, 3).clone(),
        num_samples=torch.full((slots,), 10),
        mixing=torch.full((slots,), torch.nan, dtype=torch.float64)
        if mixing is None
        else torch.tensor(mixing).double(),
        mass=torch.ones(slots, dtype=torch.float64),
        present=torch.ones(slots, dtype=torch.bool) if present is None else torch.tensor(present),
    )


def weights_of(losses, relevance=None, **more):
    return HarmlessMean()(probe_of(losses, relevance), inbox(len(losses), **more)).importance.tolist()


def test_models_that_fit_are_merged_with_equal_weights():
    merged = HarmlessMean()(probe_of([OWN, GOOD, GOOD]), inbox(3))
    assert merged.importance.tolist() == pytest.approx([1 / 3] * 3)
    assert merged.model.tolist() == pytest.approx([2.0] * 3)


def test_a_contradicting_model_is_left_out():
    assert weights_of([OWN, BAD, GOOD]) == [0.5, 0, 0.5]


def test_an_ignorant_model_is_merged():
    assert weights_of([OWN, BAD, GOOD], relevance=[1.0, 0.0, 1.0]) == pytest.approx([1 / 3] * 3)


def test_too_little_evidence_is_no_contradiction():
    """Twelve samples at a share that counts a fifth are 2.4, and three are wanted."""
    assert measure_harm(probe_of([OWN, BAD], [1.0, 0.021]), GUESS).evidence[1] < LEAST_EVIDENCE
    assert weights_of([OWN, BAD], relevance=[1.0, 0.021]) == [0.5, 0.5]
    assert weights_of([OWN, BAD], relevance=[1.0, 0.026]) == [1, 0]


def test_an_absurd_model_is_left_out_whatever_its_sender_has():
    assert weights_of([OWN, OWN + 2.1 * GUESS], relevance=[1.0, 0.0]) == [1, 0]
    assert weights_of([OWN, OWN + 1.9 * GUESS], relevance=[1.0, 0.0]) == [0.5, 0.5]
    assert weights_of([OWN, math.nan], relevance=[1.0, 0.0]) == [1, 0]


@pytest.mark.parametrize("own", [9.0, math.inf, math.nan])
def test_the_own_model_is_always_kept(own):
    assert weights_of([own, GOOD, BAD])[0] > 0


def test_a_model_of_weight_0_in_the_plan_is_not_merged_and_others_are():
    assert weights_of([OWN, GOOD, GOOD], mixing=[0.5, 0.0, 0.5]) == [0.5, 0, 0.5]


def test_a_model_of_weight_0_in_the_plan_is_judged_as_any_other():
    """Judging looks at the probe only, so that what it says about a model does not depend on the plan."""
    judged = measure_harm(probe_of([OWN, BAD, GOOD]), GUESS)
    assert judged.harm[1] > HarmlessMean().bar > judged.harm[2]
    assert weights_of([OWN, BAD, GOOD], mixing=[1.0, 0.0, 0.0]) == [1, 0, 0]


def test_an_absent_model_is_not_merged():
    assert weights_of([OWN, GOOD, GOOD], present=[True, False, True]) == [0.5, 0, 0.5]


def test_the_bar_says_how_much_is_too_much():
    losses = [OWN, -math.log((math.exp(-OWN) + 0.1) / 2)]  # half of what is known would be lost
    probe, box = probe_of(losses), inbox(2)
    assert HarmlessMean(bar=0.45)(probe, box).importance.tolist() == [1, 0]
    assert HarmlessMean(bar=0.55)(probe, box).importance.tolist() == [0.5, 0.5]


def test_merging_for_many_servers_at_once_is_the_same():
    probes = [probe_of(losses) for losses in ([OWN, GOOD, BAD], [OWN, BAD, BAD], [GOOD, OWN, OWN])]
    boxes = [inbox(3), inbox(3, mixing=[0.5, 0.5, 0.0]), inbox(3, present=[True, True, False])]
    together = torch.vmap(HarmlessMean())(
        Probe(*(torch.stack(parts) for parts in zip(*probes, strict=True))),
        Inbox(*(torch.stack(parts) for parts in zip(*boxes, strict=True))),
    )
    alone = [HarmlessMean()(probe, box) for probe, box in zip(probes, boxes, strict=True)]
    torch.testing.assert_close(together.importance, torch.stack([merged.importance for merged in alone]))
    torch.testing.assert_close(together.model, torch.stack([merged.model for merged in alone]))


@pytest.mark.parametrize("bar", [0.0, -1.0, 10.5, math.nan])
def test_a_bar_that_cannot_work_is_refused(bar):
    with pytest.raises(ConfigError, match=r"aggregator\.bar is .* must be above 0 and at most 10"):
        HarmlessMean(bar=bar)


def test_without_a_probe_nothing_can_be_left_out():
    with pytest.raises(ValueError, match="needs a probe"):
        HarmlessMean()(None, inbox(2))
