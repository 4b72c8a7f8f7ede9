"""Models: sizes, initialisation, and gradients that do not depend on the engine."""

from __future__ import annotations

import copy
import math
from typing import Any, Literal

import pytest
import torch
from helpers.refusals import refusal
from torch import Tensor, nn

from sgp_runner.config.run import check_model_reads
from sgp_runner.data.dataset import Dataset, TensorSplit
from sgp_runner.data.digits import Digits
from sgp_runner.data.grammar import Grammar
from sgp_runner.data.numbers_en_de import NumbersEnDe
from sgp_runner.data.tasks import Classification, LanguageModelling
from sgp_runner.models.config import ModelConfig
from sgp_runner.models.conv import Conv
from sgp_runner.models.decoder import rotated, rotation
from sgp_runner.models.dropout import SeededDropout, dropout_buffers
from sgp_runner.models.gpt import GPT
from sgp_runner.models.mlp import MLP
from sgp_runner.models.resnet import ResNet
from sgp_runner.models.timing_only import TimingOnly
from sgp_runner.models.torchvision import Torchvision
from sgp_runner.models.transformer import Transformer
from sgp_runner.models.vision import options_of
from sgp_runner.utils.errors import ConfigError


def _images(channels: int, pixels: int, classes: int) -> Dataset:
    images, labels = torch.zeros(2, channels, pixels, pixels), torch.zeros(2, dtype=torch.int64)
    split = TensorSplit((images,), labels, labels)
    return Dataset("images", Classification(), split, split, (channels, pixels, pixels), classes)


@pytest.mark.parametrize(
    ("model", "channels", "pixels", "classes", "parameters"),
    [
        (ResNet("resnet50"), 3, 224, 1000, 25_557_032),
        (ResNet("resnet18"), 3, 224, 1000, 11_689_512),
        (ResNet("resnet50"), 1, 8, 10, 23_519_690),
        (ResNet("resnet20"), 3, 32, 10, 269_722),
        (ResNet("resnet8"), 1, 8, 10, 75_002),
        (MLP(hidden=(64,)), 1, 8, 10, 4_810),
    ],
)
def test_size_and_output_shape(
    model: ModelConfig, channels: int, pixels: int, classes: int, parameters: int
) -> None:
    data = _images(channels, pixels, classes)
    with torch.device("meta"):  # shapes without arithmetic
        module = model.build(data)
        assert module(torch.zeros(2, *data.input_shape)).shape == (2, classes)
    assert sum(p.numel() for p in module.parameters()) == parameters


@pytest.mark.parametrize(
    ("arch", "channels", "pixels", "parameters"),
    [
        ("mobilenet_v3_small", 1, 8, 1_528_106),
        ("squeezenet1_1", 3, 32, 727_626),
        ("googlenet", 3, 32, 5_610_154),
        ("regnet_y_400mf", 3, 16, 3_907_554),
    ],
)
def test_a_classifier_of_torchvision_without_auxiliary_ones(
    arch: str, channels: int, pixels: int, parameters: int
) -> None:
    data = _images(channels, pixels, 10)
    module = Torchvision(arch).build(data)
    assert Torchvision(arch).name == arch
    assert module.training and module(torch.zeros(2, *data.input_shape)).shape == (2, 10)
    assert sum(p.numel() for p in module.parameters()) == parameters


@pytest.mark.parametrize(
    ("name", "samples", "channels_last"),
    [
        ("resnet50", 3, False),
        ("resnet50", 4, True),
        ("resnet50", 16, False),
        ("resnet18", 4, False),
    ],
)
def test_bottlenecks_are_channels_last_for_few_samples(
    name: Literal["resnet18", "resnet50"], samples: int, channels_last: bool
) -> None:
    module, seen = ResNet(name).build(_images(1, 8, 10)), []
    module.layer1.register_forward_hook(lambda layer, inputs, output: seen.append(output))
    with torch.no_grad():
        module(torch.zeros(samples, 1, 8, 8))
    assert seen[0].is_contiguous(memory_format=torch.channels_last) == channels_last
    assert seen[0].is_contiguous() != channels_last


def test_the_small_network_has_channels_last_images_on_a_cpu_and_the_same_gradients() -> None:
    """The maximum of ReLU is ReLU of the maximum; the format changes the order of sums alone."""
    module = Conv(2, 3).build(_images(1, 8, 10)).double()
    images = torch.rand(4, 1, 8, 8, dtype=torch.float64)
    seen: list[Tensor] = []
    for layer in (module[0], module[4]):
        layer.register_forward_hook(lambda layer, inputs, output: seen.append(output))
    logits = module(images)
    assert [x.stride() for x in seen] == [(128, 1, 16, 2), (16, 1, 8, 4)]
    plain = nn.Sequential(*(copy.deepcopy(module[n]) for n in (0, 2, 1, 3, 5, 4, *range(6, 11))))
    plain[0]._forward_pre_hooks.clear()
    torch.testing.assert_close(plain(images), logits, rtol=0, atol=1e-15)
    gradients = [
        torch.autograd.grad(net(images).square().sum(), [*net.parameters()])
        for net in (module, plain)
    ]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-15)


def test_small_images_keep_their_size_in_the_stem() -> None:
    with torch.device("meta"):
        small, large = (
            ResNet("resnet18").build(_images(1, 63, 10)),
            ResNet("resnet18").build(_images(1, 64, 10)),
        )
    assert small.get_parameter("conv1.weight").shape == (64, 1, 3, 3) and isinstance(
        small.maxpool, nn.Identity
    )
    assert large.get_parameter("conv1.weight").shape == (64, 1, 7, 7) and isinstance(
        large.maxpool, nn.MaxPool2d
    )


@pytest.mark.parametrize(
    ("model", "zero"),
    [
        # The first block of later stages adds channels.
        (ResNet("resnet8"), [True, False, False]),
        (ResNet("resnet20"), [True, True, True, False, True, True, False, True, True]),
        (ResNet("resnet18"), 8 * [True]),
    ],
)
def test_residual_branches_and_classifier_start_small(model: ModelConfig, zero: list[bool]) -> None:
    torch.manual_seed(0)
    module = model.build(_images(1, 8, 1000))
    assert [
        not gamma.any() for name, gamma in module.named_parameters() if name.endswith("bn2.weight")
    ] == zero
    (linear,) = [m for m in module.modules() if isinstance(m, nn.Linear)]
    assert linear.weight.std().item() == pytest.approx(0.01, rel=0.02) and not linear.bias.any()


def test_a_new_block_is_its_shortcut() -> None:
    module = ResNet("resnet8").build(_images(1, 8, 10)).eval()
    x = torch.rand(2, 16, 8, 8)
    assert torch.equal(module.get_submodule("3")(x), x)


def test_every_parameter_of_a_small_residual_network_gets_a_gradient() -> None:
    torch.manual_seed(0)
    module = ResNet("resnet8").build(_images(1, 8, 10))
    params, images, labels = [*module.parameters()], torch.randn(64, 1, 8, 8), torch.arange(64) % 10
    sizes = [torch.zeros_like(p) for p in params]
    for _ in range(3):
        loss = nn.functional.cross_entropy(module(images), labels)
        for p, size, g in zip(params, sizes, torch.autograd.grad(loss, params), strict=True):
            p.data.sub_(g, alpha=0.1)
            size.add_(g.abs())
    assert all(size.all() for size in sizes)


def test_timing_only_stands_for_a_larger_model() -> None:
    module = TimingOnly(grain=10).build(_images(1, 8, 10))
    assert [p.shape for p in module.parameters()] == [(10,)]
    with pytest.raises(RuntimeError, match="no forward pass"):
        module(torch.zeros(1))
    with pytest.raises(ConfigError, match=r"model\.grain"):
        TimingOnly(grain=0)


# Dropout


def test_dropout_mask_is_a_function_of_seed_layer_and_element() -> None:
    x = torch.ones(1000, 7)

    def mask(seed: int, layer: int) -> Tensor:
        dropout = SeededDropout(0.3, layer)
        dropout.dropout_seed.fill_(seed)
        return dropout.forward(x)

    assert torch.equal(mask(5, 0), mask(5, 0))
    assert not torch.equal(mask(5, 0), mask(6, 0)) and not torch.equal(mask(5, 0), mask(5, 1))
    for seed in range(5):
        y = mask(seed, 0)
        assert sorted(set(y.flatten().tolist())) == pytest.approx([0, 1 / 0.7], rel=1e-4)
        assert abs(float((y == 0).double().mean()) - 0.3) < 0.02
        assert (
            abs(float((y == 0)[:, :-1].double().mul((y == 0)[:, 1:]).mean()) - 0.09) < 0.015
        )  # neighbours


def test_dropout_mask_does_not_change() -> None:
    dropout = SeededDropout(0.5, layer=3)
    dropout.dropout_seed.fill_(2**62 + 1)
    assert (
        "".join(str(int(v > 0)) for v in dropout(torch.ones(32)))
        == "01111111000111101010110101110001"
    )


def test_dropout_is_the_identity_in_eval_mode_and_at_zero() -> None:
    x = torch.rand(10)
    assert SeededDropout(0.5, 0).eval()(x) is SeededDropout(0.0, 0)(x) is x


def test_dropout_buffers_are_found_and_not_saved() -> None:
    module = nn.Sequential(
        nn.BatchNorm1d(2), SeededDropout(0.1, 0), nn.Sequential(SeededDropout(0.1, 1))
    )
    assert dropout_buffers(module) == ["1.dropout_seed", "2.0.dropout_seed"]
    assert not any("dropout" in key for key in module.state_dict())


# Vectorised gradients


# The Transformer


def test_logits_do_not_see_the_future_nor_the_padding() -> None:
    data = NumbersEnDe(train_size=64, valid_size=4).load(torch.float64)
    torch.manual_seed(0)
    module = Transformer(width=16, feed_forward=32).build(data).double().train(False)
    (source, target_in), _ = data.train.batch(torch.arange(8))
    with torch.no_grad():
        logits = module(source, target_in)
        longer = module(torch.cat([source, torch.zeros(8, 3, dtype=torch.int64)], 1), target_in)
        changed = target_in.clone()
        changed[:, 4:] = 5
        other = module(source, changed)
    assert logits.shape == (8, target_in.shape[1], data.num_classes)
    assert torch.allclose(logits, longer, atol=1e-12)
    assert torch.allclose(logits[:, :4], other[:, :4], atol=1e-12) and not torch.allclose(
        logits[:, 4:], other[:, 4:]
    )


def test_shared_embedding_is_one_parameter() -> None:
    data = NumbersEnDe(train_size=64, valid_size=4).load(torch.float32)
    shared, apart = (
        sum(p.numel() for p in model.build(data).parameters())
        for model in (Transformer(), Transformer(shared_embedding=False))
    )
    assert apart - shared == 2 * 64 * data.num_classes


# GPT


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        # Embedding, and for each block 12 width^2 of matrices and 2 width of norms; a last norm.
        (GPT(), 256 * 64 + 2 * (12 * 64**2 + 2 * 64) + 64),
        (GPT(4, 128, 4), 256 * 128 + 4 * (12 * 128**2 + 2 * 128) + 128),
        (GPT(12, 768, 12), 85_150_464),
    ],
)
def test_size_of_a_gpt(model: GPT, parameters: int) -> None:
    data = Grammar(block=4, valid_size=1).load(torch.float32)
    with torch.device("meta"):
        module = model.build(data)
        assert module(torch.zeros(3, 4, dtype=torch.int64)).shape == (3, 4, 256)
    assert sum(p.numel() for p in module.parameters()) == parameters


def test_a_gpt_does_not_see_the_future() -> None:
    data = Grammar(block=8, valid_size=4).load(torch.float64)
    torch.manual_seed(0)
    module = GPT(layers=2, width=16, heads=2).build(data).double()
    (tokens,), _ = data.valid.batch(torch.arange(4))
    changed = tokens.clone()
    changed[:, 5:] = 7
    before, after = module(tokens), module(changed)
    assert torch.allclose(before[:, :5], after[:, :5], rtol=0, atol=1e-14)
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_rotary_products_depend_on_the_distance_of_two_places_alone() -> None:
    q, k = torch.randn(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    turn = rotation(10, 6, q)
    products = rotated(q.expand(10, 6), turn) @ rotated(k.expand(10, 6), turn).T
    assert products[0, 0] == pytest.approx(float(q @ k))
    for distance in range(-9, 10):
        diagonal = products.diagonal(distance)
        assert torch.allclose(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-12)


def test_the_loss_of_a_language_model_is_in_nats_and_bits() -> None:
    task = LanguageModelling(256, 2, floor=1.5)
    rows = torch.tensor([[65, 66], [67, 68], [69, 70]])
    split = TensorSplit((rows,), rows, None)

    class Even(nn.Module):
        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.weight = nn.Parameter(torch.zeros(256))

        def forward(self, tokens: Tensor) -> Tensor:
            return self.weight.expand(*tokens.shape, 256)

    with torch.no_grad():
        found = task.evaluate(Even(), split)
    assert found == pytest.approx(
        {"loss": 8 * math.log(2), "bits_per_byte": 8.0, "excess_loss": 8 * math.log(2) - 1.5}
    )


def test_data_that_a_model_cannot_read_is_refused_by_name() -> None:
    assert str(refusal(check_model_reads, Transformer(), Digits())) == (
        "data: model=transformer reads translation data; data=digits is classification. Use "
        "model=conv or hf or mlp or resnet18 or resnet20 or resnet50 or resnet8 or torchvision, "
        "or data=numbers_en_de."
    )


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"width": 30}, "model.width"),
        ({"dropout": 1.0}, "model.dropout"),
        ({"heads": 0}, "model.heads"),
    ],
)
def test_impossible_transformers_are_refused(arguments: dict[str, Any], key: str) -> None:
    assert refusal(Transformer, **arguments).key == key


def test_an_architecture_is_told_the_size_of_images() -> None:
    options = {"vit_b_16": {"image_size": 32}, "maxvit_t": {"input_size": (32, 64)}, "resnet18": {}}
    assert {arch: options_of(arch, 32, 64) for arch in options} == options
