"""Products of re-laid weights against torch's, and when the blocked copy must not be used."""

import copy
import pickle

import pytest
import torch

from fastverify.comm.communicator import single_rank_communicator
from fastverify.models import linear
from fastverify.models.linear import Linear, pack_linears
from fastverify.models.random_weights import initialize
from fastverify.models.vocab_parallel import VocabParallelEmbedding, VocabParallelHead


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
def test_products_stay_the_same(rows: int, layer: Linear) -> None:
    x = torch.randn(rows, 48)
    expected = torch.nn.functional.linear(x, layer.weight, layer.bias)
    layer.add_blocked_copy()
    layer.store_by_input()
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_blocked_copy_is_used_and_dropped_by_a_conversion(layer: Linear) -> None:
    x = torch.randn(4, 48)
    layer.add_blocked_copy()
    before = layer(x)
    layer.weight.zero_()
    assert torch.equal(layer(x), before), "the product comes from the blocked copy"
    assert layer.bias is not None
    expected = layer.bias.expand(4, -1)
    for fresh in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), layer.to(torch.float64).to(torch.float32)):
        torch.testing.assert_close(fresh(x), expected)


def test_only_larger_weights_get_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = torch.nn.Sequential(Linear(64, 64), Linear(512, 512))
    assert pack_linears(copied := copy.deepcopy(layers))
    assert [layer._blocked is not None for layer in copied] == [False, True]
    monkeypatch.setattr(linear, "_MOST_BLOCKED_BYTES", 2**20)
    assert pack_linears(layers)
    assert [layer._blocked is not None for layer in layers] == [False, False]
    assert [layer.weight.stride() for layer in layers] == [(1, 64), (1, 512)]


def test_bf16_keeps_its_layout() -> None:
    layer = Linear(512, 512).to(torch.bfloat16)
    assert not pack_linears(layer)
    assert layer.weight.is_contiguous()


def test_a_tied_head_leaves_the_embedding_alone() -> None:
    communicator = single_rank_communicator()
    embedding = VocabParallelEmbedding(50, 16, communicator)
    head = VocabParallelHead(50, 16, communicator, tied=embedding.weight)
    initialize(embedding, seed=1)
    pack_linears(head)
    assert embedding.weight.is_contiguous()
    assert torch.equal(head.weight, embedding.weight)
