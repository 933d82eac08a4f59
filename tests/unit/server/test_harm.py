"""Harm: what a server's own data say about a received model, and the merge that goes by it."""

import math

import numpy as np
import pytest
import torch

from hatdfed.core.policies.trusted_links import DOUBTFUL, LEAST_EVIDENCE
from hatdfed.core.report_check import MOST_HARM
from hatdfed.errors import ConfigError
from hatdfed.randomness import stream
from hatdfed.server.aggregation import HarmlessMean, Inbox, Probe
from hatdfed.server.harm import (
    SHARE_STEPS,
    compare_on_common_labels,
    compare_scores,
    compare_sizes,
    measure_harm,
    share_labels,
)
from hatdfed.server.inbox import Comparison

GUESS = math.log(10)
LABELS, SAMPLES, MODELS = 6, 30, 5


def random_case(seed):
    """Logits [D, Q, C], labels, which samples count, label shares as bytes [D, C]."""
    rng = stream(seed, "probe")
    logits = torch.tensor(rng.normal(0, 3, (MODELS, SAMPLES, LABELS)), dtype=torch.float32)
    labels, valid = torch.tensor(rng.integers(LABELS, size=SAMPLES)), torch.tensor(rng.random(SAMPLES) < 0.8)
    logits[torch.arange(MODELS)[:, None], torch.arange(SAMPLES), labels] += 4  # the models know something
    counts = rng.choice([0, 1, 10, 100], size=(MODELS, LABELS), p=[0.3, 0.1, 0.2, 0.4])
    return logits, labels, valid, share_labels(torch.tensor(counts))


def judge(logits, labels, valid, shares):
    repeated = labels.expand(len(logits), -1)
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), repeated.flatten(), reduction="none")
    probe = Probe(losses.view(repeated.shape), valid, compare_on_common_labels(logits, labels, valid, shares))
    return measure_harm(probe, math.log(logits.shape[-1]))


def probability(logits, label, among):
    chosen = np.exp(logits[among] - logits[among].max())
    return chosen[among.index(label)] / chosen.sum()


def judge_by_loop(logits, labels, valid, shares):
    """Harm and evidence, sample by sample."""
    logits, labels, shares = logits.double().numpy(), labels.tolist(), shares.double().numpy() / SHARE_STEPS
    known = [q for q in range(SAMPLES) if valid[q]]
    harm, evidence = [], []
    for model in range(MODELS):
        common = [label for label in range(LABELS) if shares[0, label] >= 0.03 and shares[model, label] >= 0.03]
        among = common if len(common) > 1 else list(range(LABELS))
        weights, own, theirs = [], [], []
        for q in known:
            if labels[q] in common:
                alike = sum(labels[other] == labels[q] for other in known)
                weights.append(min(shares[model, labels[q]], 0.1) * math.sqrt(alike) / alike)
                own.append(probability(logits[0, q], labels[q], among))
                theirs.append(probability(logits[model, q], labels[q], among))
        mine, other = (np.average(each, weights=weights) - 1 / len(among) if weights else 0 for each in (own, theirs))
        can_judge = mine > 0.1 * (1 - 1 / len(among))
        harm.append(np.clip((mine - other) / mine, -10, 10) if can_judge else 0)
        evidence.append(sum(weights) ** 2 / sum(weight**2 for weight in weights) if can_judge else 0)
    return harm, evidence


@pytest.mark.parametrize("seed", range(12))
def test_harm_and_evidence_are_what_a_plain_loop_finds(seed):
    case = random_case(seed)
    found = judge(*case)
    for mine, expected in zip((found.harm, found.evidence), judge_by_loop(*case), strict=True):
        np.testing.assert_allclose(mine.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_many_servers_at_once_are_the_same_as_one_by_one():
    cases = [random_case(seed) for seed in range(4)]
    together = torch.vmap(compare_on_common_labels)(*(torch.stack(parts) for parts in zip(*cases, strict=True)))
    for server, case in enumerate(cases):
        for found, expected in zip(together, compare_on_common_labels(*case), strict=True):
            torch.testing.assert_close(found[server], expected)


def test_padding_does_not_count():
    logits, labels, valid, shares = random_case(0)
    more = torch.cat([logits, torch.full((MODELS, 3, LABELS), 50.0)], dim=1)
    padded = (more, torch.cat([labels, labels[:3]]), torch.cat([valid, torch.zeros(3, dtype=torch.bool)]), shares)
    for found, expected in zip(judge(*padded), judge(logits, labels, valid, shares), strict=True):
        torch.testing.assert_close(found, expected)


def says(*answers, sure=0.9):
    """[Q, 4] logits of a model that gives these labels to the samples."""
    probabilities = torch.full((len(answers), 4), (1 - sure) / 3)
    probabilities[torch.arange(len(answers)), torch.tensor(answers)] = sure
    return probabilities.log()


# Twelve samples, four each of the labels 0, 1 and 2.
TRUE = (0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2)
ALL_BUT_3 = [40, 40, 40, 0]


def judge_one(answers, counts, own_counts=ALL_BUT_3, own=TRUE):
    shares = share_labels(torch.tensor([own_counts, counts]))
    found = judge(
        torch.stack([says(*own), says(*answers)]), torch.tensor(TRUE), torch.ones(12, dtype=torch.bool), shares
    )
    return float(found.harm[1]), float(found.evidence[1])


def test_a_model_that_says_the_same_does_no_harm():
    harm, evidence = judge_one(TRUE, ALL_BUT_3)
    assert harm == pytest.approx(0, abs=1e-6)
    assert evidence == pytest.approx(12)


def test_a_model_that_means_other_labels_is_worse_than_a_guess():
    assert judge_one([(label + 1) % 3 for label in TRUE], ALL_BUT_3)[0] > 1.2


def test_ignorance_does_not_count():
    """Wrong about a label that its sender does not have."""
    harm, evidence = judge_one([0 if label == 2 else label for label in TRUE], [50, 50, 0, 0])
    assert harm == pytest.approx(0, abs=1e-6)
    assert evidence == pytest.approx(8)


def test_nor_does_a_label_of_which_its_sender_has_next_to_nothing():
    assert judge_one([0 if label == 2 else label for label in TRUE], [50, 50, 2, 0])[0] == pytest.approx(0, abs=1e-6)


def test_answers_with_a_label_that_the_receiver_does_not_have_do_not_count():
    """It hesitates between a true label and one that the receiver has never seen."""
    hesitating = says(*TRUE)
    hesitating[:, 3] = hesitating.max(dim=1).values
    shares = share_labels(torch.tensor([ALL_BUT_3, [40, 40, 40, 40]]))
    logits = torch.stack([says(*TRUE), hesitating])
    assert float(judge(logits, torch.tensor(TRUE), torch.ones(12, dtype=torch.bool), shares).harm[1]) < 0.05


def test_the_same_mistakes_on_labels_that_the_sender_has_do_count():
    assert judge_one([0 if label == 2 else label for label in TRUE], ALL_BUT_3)[0] > 0.3


def test_who_always_says_the_label_that_it_has_most_of_is_found_out():
    assert judge_one([0] * 12, [70, 15, 15, 0])[0] > 0.5
    assert judge_one([0] * 12, [100, 0, 0, 0])[0] == pytest.approx(0, abs=1e-6), "where it has nothing else"


def test_a_label_that_the_sender_has_little_of_does_not_decide():
    answers = [0 if label == 2 else label for label in TRUE]
    little, much = (judge_one(answers, counts)[0] for counts in ([48, 48, 4, 0], [33, 33, 33, 0]))
    assert 0 < little < 0.6 * much


def test_with_one_label_in_common_all_labels_are_possible_answers():
    harm, evidence = judge_one([3] * 12, [50, 0, 0, 50])
    assert harm > 1, "a sample of label 0 is said to have label 3"
    assert evidence == pytest.approx(4)


def test_without_common_labels_nothing_is_said():
    assert judge_one([3] * 12, [0, 0, 0, 100]) == (0, 0)


def test_a_server_that_does_not_know_the_common_labels_does_not_judge():
    assert judge_one(TRUE, [0, 50, 50, 0], own=[0] * 12)[1] == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_model_whose_answers_are_no_numbers_has_the_largest_harm(value):
    logits, labels, valid, shares = random_case(1)
    shares[:2] = 40
    logits[1, valid.nonzero()[0]] = value
    found = judge(logits, labels, valid, shares)
    assert found.harm[1] == 10
    assert torch.isfinite(torch.stack(found)).all()


def test_knowledge_is_nothing_for_a_guess_and_one_for_a_model_that_is_always_right_and_sure():
    for losses, knowledge in ([GUESS, 0.0], [0.0, 1.0], [2 * GUESS, -0.1], [-math.log(0.82), 0.8]):
        assert float(measure_harm(probe_of([losses, 1.0]), GUESS).knowledge[1]) == pytest.approx(knowledge, abs=1e-6)


def test_a_few_samples_on_which_it_is_surely_wrong_do_not_decide():
    logits = torch.stack([says(*TRUE), says(*TRUE)])
    logits[1, 0] = torch.tensor([-1000.0, 0, 0, 0])
    shares = share_labels(torch.tensor([ALL_BUT_3, ALL_BUT_3]))
    assert judge(logits, torch.tensor(TRUE), torch.ones(12, dtype=torch.bool), shares).harm[1] < 0.2


def test_harm_without_a_comparison_is_a_mistake():
    with pytest.raises(ValueError, match="comparison"):
        measure_harm(Probe(torch.ones(2, 3), torch.ones(3, dtype=torch.bool)), GUESS)


def probe_of(losses, samples=None):
    """Every model has one loss on each of 12 samples; so many of these are of common labels, all if not said."""
    losses = torch.tensor(losses)[:, None].expand(-1, 12).clone()
    counted = torch.full((len(losses),), 12) if samples is None else torch.tensor(samples)
    weight = (torch.arange(12) < counted[:, None]).float()
    right = torch.nan_to_num(torch.exp(-losses))
    comparison = Comparison(
        right[:1].expand_as(right), right, weight, torch.full((len(losses),), 0.1), torch.ones(len(losses))
    )
    return Probe(losses, torch.ones(12, dtype=torch.bool), comparison)


def test_label_shares_come_back_to_half_a_step():
    counts = torch.tensor([300, 100, 57, 0, 43])
    shares = share_labels(counts)
    assert shares.dtype == torch.uint8
    np.testing.assert_allclose(shares.numpy() / SHARE_STEPS, counts.numpy() / 500, atol=0.5 / SHARE_STEPS)


def test_a_label_that_is_there_has_a_share_and_one_that_is_not_has_none():
    assert share_labels(torch.tensor([100_000, 1, 0])).tolist() == [255, 1, 0]


def test_a_server_without_images_shares_no_label():
    assert share_labels(torch.zeros(4, dtype=torch.int64)).tolist() == [0, 0, 0, 0]


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


def probe_of_sizes(sizes, losses, samples=None):
    probe = probe_of(losses, samples)
    return probe._replace(comparison=probe.comparison._replace(size=torch.tensor(sizes)))


def test_a_model_that_is_much_larger_than_the_own_one_is_harmful_whatever_it_answers():
    probe = probe_of_sizes([1.0, 3.1, 2.9, 0.1], [OWN, OWN, OWN, OWN])
    found = measure_harm(probe, GUESS)
    assert found.harm.tolist() == pytest.approx([0, 10, 0, 0], abs=1e-6)
    assert HarmlessMean()(probe, inbox(4)).importance.tolist() == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3])


def test_a_large_model_is_harmful_also_where_no_label_is_common():
    probe = probe_of_sizes([1.0, 10.0], [OWN, OWN], samples=[12, 0])
    assert measure_harm(probe, GUESS).evidence.tolist() == [12, 12]
    assert HarmlessMean()(probe, inbox(2)).importance.tolist() == [1, 0]


def test_sizes_are_compared_with_the_own_one_unless_that_is_0():
    assert compare_sizes(torch.tensor([2.0]), torch.tensor([2.0, 1.0, 6.0])).tolist() == [1, 0.5, 3]
    assert compare_sizes(torch.tensor([0.0]), torch.tensor([0.0, 1.0])).tolist() == [1, 1]


def weights_of(losses, samples=None, **more):
    return HarmlessMean()(probe_of(losses, samples), inbox(len(losses), **more)).importance.tolist()


def test_models_that_fit_are_merged_with_equal_weights():
    merged = HarmlessMean()(probe_of([OWN, GOOD, GOOD]), inbox(3))
    assert merged.importance.tolist() == pytest.approx([1 / 3] * 3)
    assert merged.model.tolist() == pytest.approx([2.0] * 3)


def test_a_contradicting_model_is_left_out():
    assert weights_of([OWN, BAD, GOOD]) == [0.5, 0, 0.5]


def test_an_ignorant_model_is_merged():
    assert weights_of([OWN, BAD, GOOD], samples=[12, 0, 12]) == pytest.approx([1 / 3] * 3)


def test_too_little_evidence_is_no_contradiction():
    assert LEAST_EVIDENCE == 3
    assert weights_of([OWN, BAD], samples=[12, 2]) == [0.5, 0.5]
    assert weights_of([OWN, BAD], samples=[12, 3]) == [1, 0]


def test_an_absurd_model_is_left_out_and_one_that_knows_other_labels_may_be_worse():
    assert weights_of([OWN, OWN + 10.1 * GUESS], samples=[12, 0]) == [1, 0]
    assert weights_of([OWN, OWN + 9.9 * GUESS], samples=[12, 0]) == [0.5, 0.5]
    assert weights_of([OWN, math.nan], samples=[12, 0]) == [1, 0]
    assert HarmlessMean(bar=10.0)(probe_of([OWN, OWN + 2.1 * GUESS]), inbox(2)).importance.tolist() == [1, 0]
    assert HarmlessMean(bar=10.0)(probe_of([OWN, OWN + 1.9 * GUESS]), inbox(2)).importance.tolist() == [0.5, 0.5]


def test_a_stranger_is_merged_if_it_was_judged_or_if_the_server_knows_its_data():
    knows, knows_little = -math.log(0.7), -math.log(0.4)  # probabilities of the true label; a guess has 0.1
    stranger = [1 - DOUBTFUL, DOUBTFUL]
    assert weights_of([knows, GOOD], samples=[12, 0], mixing=stranger) == [0.5, 0.5]
    assert weights_of([knows_little, GOOD], samples=[12, 0], mixing=stranger) == [1, 0]
    assert weights_of([knows_little, knows_little], samples=[12, 12], mixing=stranger) == [0.5, 0.5]
    assert weights_of([knows_little, GOOD], samples=[12, 0], mixing=[0.5, 0.5]) == [0.5, 0.5]


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
    comparisons = Comparison(*(torch.stack(parts) for parts in zip(*(each.comparison for each in probes), strict=True)))
    losses, valid = (torch.stack([getattr(each, name) for each in probes]) for name in ("losses", "valid"))
    together = torch.vmap(HarmlessMean())(
        Probe(losses, valid, comparisons), Inbox(*(torch.stack(parts) for parts in zip(*boxes, strict=True)))
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


def test_without_class_labels_a_model_is_compared_by_its_scores():
    scores = torch.tensor([[0.9, 0.9, 0.2], [0.5, 0.5, 0.2], [torch.nan, 0.9, 0.2]])
    guess, valid = torch.tensor([0.4, 0.4, 1.0]), torch.tensor([True, True, False])
    comparison = compare_scores(scores, guess, valid)
    losses = torch.tensor([[0.1, 0.1, 9.0], [0.7, 0.7, 9.0], [torch.nan, 0.1, 9.0]])
    found = measure_harm(Probe(losses, valid, comparison), guess_loss=1.0)
    torch.testing.assert_close(found.harm[:2], torch.tensor([0.0, 0.8]))  # it knows 0.1 more than a guess, not 0.5
    assert found.harm[2] == MOST_HARM
    torch.testing.assert_close(found.evidence, torch.full((3,), 2.0))


def test_a_server_that_scores_no_better_than_a_guess_cannot_judge():
    scores, valid = torch.tensor([[0.4, 0.4], [0.0, 0.0]]), torch.tensor([True, True])
    comparison = compare_scores(scores, torch.tensor([0.4, 0.4]), valid)
    found = measure_harm(Probe(torch.ones(2, 2), valid, comparison), guess_loss=1.0)
    assert (found.evidence == 0).all()
    assert (found.harm == 0).all()
