"""Adapters: a frozen layer and a product of two small factors."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from hatdfed.errors import ConfigError
from hatdfed.server.learner import Learner
from hatdfed.server.lora import LoraLinear, lora
from hatdfed.server.optimisers import Adam
from hatdfed.server.pretrained import load_weights
from hatdfed.server.work import Batch


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3))


def batch(size=20):
    generator = torch.Generator().manual_seed(1)
    return Batch(torch.randn(size, 1, 4, 4, generator=generator), torch.randint(0, 3, (size,), generator=generator))


def trained(learner, seed=0):
    state = learner.optimiser.init(learner.num_trainable)
    return learner.fit(learner.init(seed), state, [batch()] * 10, seed=0)[0]


def products(learner, params):
    tensors = learner.state_dict(params)
    return {n: tensors[n] @ tensors[n.replace("up", "down")] for n in tensors if n.endswith(".up")}


def test_a_fresh_adapter_changes_nothing_and_the_module_given_stays_as_it_was():
    module = mlp()
    adapted = lora(module, rank=2)
    torch.testing.assert_close(adapted(batch().x), module(batch().x))
    assert all(parameter.requires_grad for parameter in module.parameters())
    assert not any(isinstance(layer, LoraLinear) for layer in module.modules())


def test_only_the_second_factor_is_trained_and_sent():
    learner = Learner(lambda: lora(mlp(), rank=2), Adam(1e-2))
    assert set(learner.layout) == {"1.up", "3.up", "5.up"}
    assert learner.num_params == 2 * (12 + 12 + 3)
    before = {name: tensor.clone() for name, tensor in learner.frozen.items()}
    params = trained(learner)
    assert float(learner.losses(params, batch()).mean()) < float(learner.losses(learner.init(0), batch()).mean())
    assert all(torch.equal(tensor, before[name]) for name, tensor in learner.frozen.items())


def test_the_mean_of_the_second_factors_is_the_mean_of_the_products():
    learner = Learner(lambda: lora(mlp(), rank=2), Adam(1e-2))
    models = [trained(learner, seed) + 0.1 * torch.randn(learner.num_params) for seed in (0, 1)]
    mean = products(learner, sum(models) / 2)
    for name, product in mean.items():
        torch.testing.assert_close(product, sum(products(learner, model)[name] for model in models) / 2)


def test_the_mean_of_both_factors_is_another_model():
    learner = Learner(lambda: lora(mlp(), rank=2, both_factors=True), Adam(1e-2))
    models = [trained(learner) + 0.1 * torch.randn(learner.num_params, generator=g) for g in map(seeded, (0, 1))]
    mean = products(learner, sum(models) / 2)
    apart = [(mean[n] - sum(products(learner, m)[n] for m in models) / 2).norm() / mean[n].norm() for n in mean]
    assert max(apart) > 0.01


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_targets_and_layers_that_are_trained_as_a_whole_are_chosen_by_name():
    learner = Learner(lambda: lora(mlp(), rank=2, alpha=8, targets=["3"], trained=["5.*"], both_factors=True), Adam())
    assert set(learner.layout) == {"3.up", "3.down", "5.weight", "5.bias"}
    assert learner.module[3].scale == 4
    assert isinstance(learner.module[5], nn.Linear)


def test_a_single_layer_can_be_adapted():
    assert isinstance(lora(nn.Linear(3, 2), rank=1), LoraLinear)


def test_a_layer_in_two_places_has_one_adapter():
    layer = nn.Linear(4, 4)
    adapted = lora(nn.Sequential(layer, nn.ReLU(), layer), rank=1)
    assert adapted[0] is adapted[2]
    assert isinstance(adapted[0], LoraLinear)


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"rank": 0}, "at least 1"), ({"rank": 1, "targets": ["x"]}, "x"), ({"rank": 1, "trained": ["*"]}, "no adapter")],
)
def test_adapters_that_cannot_be_meant_are_refused_in_a_sentence(settings, words):
    with pytest.raises(ConfigError, match=words):
        lora(mlp(), **settings)


def test_weights_are_read_from_a_file_by_name(tmp_path):
    file, source, module = tmp_path / "weights.safetensors", mlp(), mlp()
    save_file(source.state_dict(), file)
    load_weights(module, file, skip=["5.*"])
    assert torch.equal(module[1].weight, source[1].weight)
    assert not torch.equal(module[5].weight, source[5].weight)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"9.weight": torch.zeros(2)}, "have a tensor 9.weight"),
        ({"1.weight": torch.zeros(2, 2)}, r"1.weight has the shape \[2, 2\], but the network wants \[12, 16\]"),
    ],
)
def test_weights_of_another_network_are_refused_in_a_sentence(tmp_path, tensors, words):
    save_file(tensors, tmp_path / "weights.safetensors")
    with pytest.raises(ConfigError, match=words):
        load_weights(mlp(), tmp_path / "weights.safetensors")


def test_a_file_that_holds_no_weights_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "weights.safetensors").write_text("nothing")
    for name in ("weights.safetensors", "missing.safetensors"):
        with pytest.raises(ConfigError, match="cannot be read"):
            load_weights(mlp(), tmp_path / name)
