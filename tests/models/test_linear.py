"""The packed product against torch's, and when the packed copy must not be used."""

import copy
import logging
import pickle

import pytest
import torch

from fastverify.models import linear
from fastverify.models.linear import Linear, pack_linears


@pytest.fixture
def layer() -> Linear:
    layer = Linear(48, 37, bias=True).requires_grad_(False)
    torch.manual_seed(0)
    layer.weight.normal_()
    assert layer.bias is not None
    layer.bias.normal_()
    return layer


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 16, 70])
@torch.inference_mode()
def test_packed_product_is_the_same(rows: int, layer: Linear) -> None:
    x = torch.randn(rows, 48)
    expected = torch.nn.functional.linear(x, layer.weight, layer.bias)
    layer.pack()
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_packed_copy_is_used_and_dropped_by_a_conversion(layer: Linear) -> None:
    x = torch.randn(4, 48)
    layer.pack()
    before = layer(x)
    layer.weight.zero_()
    assert torch.equal(layer(x), before), "the product comes from the packed copy"
    expected = layer.bias.expand(4, -1)
    for fresh in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), layer.to(torch.float64).to(torch.float32)):
        torch.testing.assert_close(fresh(x), expected)


def test_only_larger_weights_are_packed() -> None:
    both = torch.nn.Sequential(Linear(64, 64), Linear(512, 512)).requires_grad_(False)
    assert pack_linears(both)
    assert [layer._packed is not None for layer in both] == [False, True]


def test_large_and_bf16_models_stay_unpacked(
    layer: Linear, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert not pack_linears(copy.deepcopy(layer).to(torch.bfloat16))
    monkeypatch.setattr(linear, "_MOST_PACKED_BYTES", layer.weight.nbytes - 1)
    assert not pack_linears(layer)
    assert caplog.text.count("stay unpacked") == 2
