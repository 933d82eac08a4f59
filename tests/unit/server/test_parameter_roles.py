"""What travels: roles of tensors, where they lie in a model, and what happens to each."""

from functools import partial

import pytest
import torch
from torch import nn

from hatdfed.errors import ConfigError
from hatdfed.server.aggregation import Importance, Inbox, Median, Uniform
from hatdfed.server.codecs import codec_for
from hatdfed.server.learner import Learner
from hatdfed.server.networks import NETWORKS
from hatdfed.server.optimisers import Adam
from hatdfed.server.parameter_roles import RolePatterns, SentPart, assign_roles, digest_tensors
from hatdfed.server.program import EdgeProgram
from hatdfed.server.work import Batch, Work

SMALL_CNN = partial(NETWORKS["small-cnn"], (1, 8, 8), 5)
HEAD = RolePatterns(personal=("11.*",))
MIXED = RolePatterns(personal=("11.*", "*.running_*"), frozen=("0.*",))


def learner(roles=None, make=SMALL_CNN):
    return Learner(make, Adam(1e-2), roles=roles)


def batch(size=12):
    generator = torch.Generator().manual_seed(1)
    return Batch(torch.randn(size, 1, 8, 8, generator=generator), torch.randint(0, 5, (size,), generator=generator))


def work():
    return Work((batch(),) * 3, 12, 6, batch(4), batch(30), seed=0)


def inbox(edge, *servers):
    return Inbox(
        torch.stack([edge.learner.sent.take(server.params) for server in servers]),
        torch.full((len(servers),), 12),
        torch.full((len(servers),), torch.nan, dtype=torch.float64),
        torch.ones(len(servers), dtype=torch.float64),
        torch.ones(len(servers), dtype=torch.bool),
    )


def program(roles, aggregator=None, codec="float32"):
    made = learner(roles)
    return EdgeProgram(made, aggregator or Uniform(), codec_for(codec, made.sent_sizes))


def test_with_nothing_declared_a_model_is_its_parameters_and_then_its_buffers():
    module = SMALL_CNN()
    parameters = [name for name, _ in module.named_parameters()]
    buffers = [name for name, buffer in module.named_buffers() if buffer.is_floating_point()]
    plain = learner()
    assert list(plain.layout) == [*parameters, *buffers]
    assert plain.sent == SentPart.whole(plain.num_params)
    assert plain.num_kept == plain.num_params == sum(shape.numel() for _, shape in plain.layout.values())
    params = plain.init(3)
    assert plain.sent.take(params) is params
    assert plain.sent.put(torch.zeros(0), params) is params
    assert not plain.frozen


def test_what_is_sent_is_one_slice_and_what_is_trained_comes_first():
    mixed = learner(MIXED)
    start, stop = mixed.sent.start, mixed.sent.stop
    for name, (place, shape) in mixed.layout.items():
        is_inside = start <= place and place + shape.numel() <= stop
        assert is_inside == (mixed.roles[name] == "shared"), name
        assert (place < mixed.num_trainable) == (name in dict(SMALL_CNN().named_parameters())), name
    assert mixed.num_params == sum(mixed.sent_sizes) == stop - start
    assert not {"0.weight", "0.bias"} & mixed.layout.keys()
    assert mixed.frozen.keys() == {"0.weight", "0.bias"}


def test_roles_change_where_a_number_lies_and_not_what_it_is():
    plain, mixed = learner(), learner(HEAD)
    mine, theirs = plain.state_dict(plain.init(3)), mixed.state_dict(mixed.init(3))
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    state = plain.optimiser.init(plain.num_trainable)
    trained = [each.fit(each.init(3), state, [batch()] * 3, seed=0)[0] for each in (plain, mixed)]
    mine, theirs = plain.state_dict(trained[0]), mixed.state_dict(trained[1])
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_frozen_tensors_are_the_same_for_every_model_and_never_change():
    mixed = learner(RolePatterns(frozen=("0.*", "1.*", "4.weight")))
    before = digest_tensors(mixed.frozen)
    assert digest_tensors(learner(RolePatterns(frozen=("0.*", "1.*", "4.weight"))).frozen) == before
    params, _ = mixed.fit(mixed.init(0), mixed.optimiser.init(mixed.num_trainable), [batch()] * 5, seed=0)
    mixed.accuracy(params, batch())
    assert digest_tensors(mixed.frozen) == before
    assert torch.equal(mixed.state_dict(params)["1.running_mean"], torch.zeros(16))
    held = {name: dict(mixed.module.state_dict(keep_vars=True))[name] for name in mixed.frozen}
    assert all(held[name].data_ptr() == tensor.data_ptr() for name, tensor in mixed.frozen.items())


def test_a_frozen_batch_norm_computes_with_its_statistics_while_others_train():
    inputs = []
    mixed = learner(RolePatterns(frozen=("0.*", "1.*")))
    mixed._train_module[1].register_forward_hook(lambda layer, given, out: inputs.append(out.detach()))
    mixed.fit(mixed.init(0), mixed.optimiser.init(mixed.num_trainable), [batch()], seed=0)
    frozen, x = mixed.module[:2], batch().x
    torch.testing.assert_close(inputs[0], frozen(x).detach())


@pytest.mark.parametrize("aggregator", [Uniform(), Importance(), Median()])
@pytest.mark.parametrize("codec", ["float32", "int4"])
def test_a_merge_leaves_personal_parts_alone_and_judges_models_with_them(aggregator, codec):
    edge = program(MIXED, aggregator, codec)
    mine, theirs = (edge.train(edge.start(seed), work(), 0) for seed in (0, 1))
    sent, offer = edge.offer(mine, work(), 1)
    assert sum(tensor.numel() for tensor in offer.payload.values()) <= edge.learner.num_params
    assert len(sent.codec_memory) in (0, edge.learner.num_params)
    merged, verdict = edge.merge(mine, inbox(edge, mine, theirs), work())
    personal = [slice(0, edge.learner.sent.start), slice(edge.learner.sent.stop, None)]
    for part in personal:
        assert torch.equal(merged.params[part], mine.params[part])
        assert not torch.equal(merged.params[part], theirs.params[part])
    assert not torch.equal(edge.learner.sent.take(merged.params), edge.learner.sent.take(mine.params))
    assert verdict.accuracy == edge.learner.accuracy(merged.params, work().validation)
    if aggregator.needs_probe:
        completed = edge.learner.sent.put(mine.params, edge.learner.sent.take(theirs.params))
        loss = edge.learner.losses(completed, work().probe).mean()
        torch.testing.assert_close(verdict.scores["loss"][1], loss)


def test_a_personal_part_that_is_not_usable_is_taken_back_after_training():
    edge = program(HEAD)
    server = edge.start(0)
    broken = server.params.clone()
    broken[0] = torch.nan
    kept, trouble = edge.keep_usable(server, server._replace(params=broken))
    assert trouble
    assert torch.equal(kept.params, server.params)


class Declared(nn.Module):
    """Has a backbone that is frozen and a head that is personal, and says so."""

    personal_parameters = ("head.*",)

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6)).requires_grad_(False)
        self.middle = nn.Linear(6, 6)
        self.head = nn.Linear(6, 5)
        self.register_buffer("table", torch.ones(6), persistent=False)

    def forward(self, x):
        return self.head(self.middle(self.backbone(x)) * self.table)


def test_a_network_declares_roles_and_settings_win():
    roles = assign_roles(Declared())
    assert {name for name, role in roles.items() if role == "personal"} == {"head.weight", "head.bias"}
    assert {name for name, role in roles.items() if role == "shared"} == {"middle.weight", "middle.bias"}
    assert roles["backbone.2.running_mean"] == roles["table"] == "frozen"
    chosen = assign_roles(Declared(), RolePatterns(shared=("head.*", "backbone.1.*"), personal=("middle.*",)))
    assert {name for name, role in chosen.items() if role == "shared"} == {
        "head.weight", "head.bias", "backbone.1.weight", "backbone.1.bias",
    }  # fmt: skip
    assert chosen["middle.bias"] == "personal"
    assert chosen["backbone.2.weight"] == "frozen"


def test_a_whole_model_is_exported_with_its_frozen_tensors():
    declared = learner(make=Declared)
    tensors = declared.state_dict(declared.init(0))
    assert tensors.keys() == {name for name in Declared().state_dict() if not name.endswith("num_batches_tracked")}
    module = Declared().eval()
    module.load_state_dict(tensors, strict=False)
    torch.testing.assert_close(module(batch().x), declared.logits(declared.init(0), batch().x))


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        (RolePatterns(personal=("haed.*",)), ["parameters.personal", "'haed.*'", "It has 0.weight, 0.bias, "]),
        (RolePatterns(personal=("0.*",), frozen=("*.weight",)), ["both match 0.weight", "narrower"]),
        (RolePatterns(frozen=("*",)), ["No parameter", "parameters.frozen"]),
        (RolePatterns(personal=("*.weight", "*.bias")), ["No parameter", "method local"]),
    ],
)
def test_patterns_that_cannot_be_meant_are_refused_in_a_sentence(roles, words):
    with pytest.raises(ConfigError) as refused:
        learner(roles)
    assert all(word in str(refused.value) for word in words)


def test_statistics_of_batch_norm_can_stay_at_home():
    fed_bn = learner(RolePatterns(personal=("*.running_*",)))
    assert fed_bn.num_kept - fed_bn.num_params == 2 * (16 + 32)
    assert fed_bn.sent.start == 0
