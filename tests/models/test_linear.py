"""Packed layers against torch's, what packing leaves of a layer, and who does not get packed."""

import copy

import pytest
import torch

from fastverify.comm.communicator import single_rank_communicator
from fastverify.errors import UnsupportedError
from fastverify.models.kernels import find_kernels
from fastverify.models.linear import GatedLinear, Linear, pack_linears
from fastverify.models.random_weights import initialize
from fastverify.models.vocab_parallel import VocabParallelEmbedding, VocabParallelHead

needs_kernels = pytest.mark.skipif(find_kernels() is None, reason="this processor has no vector code")


def random_layer(kind: type[Linear], bias: bool) -> Linear:
    layer = kind(48, 74, bias).requires_grad_(False)
    torch.manual_seed(0)
    layer.weight.normal_()
    if layer.bias is not None:
        layer.bias.normal_()
    return layer


@needs_kernels
@pytest.mark.parametrize("kind", [Linear, GatedLinear])
@pytest.mark.parametrize("bias", [False, True])
@torch.inference_mode()
def test_packing_changes_no_product(kind: type[Linear], bias: bool) -> None:
    layer = random_layer(kind, bias)
    x = torch.randn(7, 48)
    expected = layer.forward(x)
    pack_linears(layer)
    assert layer._packed is not None
    torch.testing.assert_close(layer.forward(x), expected, rtol=1e-5, atol=1e-5)


@needs_kernels
def test_a_packed_layer_keeps_its_shape_alone_and_does_not_move() -> None:
    layer = random_layer(Linear, bias=True)
    pack_linears(layer)
    assert layer.weight.is_meta
    assert layer.weight.shape == (74, 48)
    with pytest.raises(UnsupportedError, match="before packing"):
        layer.to(torch.float64)


def test_bf16_is_left_to_torch() -> None:
    layer = random_layer(Linear, bias=False).to(torch.bfloat16)
    before = copy.deepcopy(layer.weight)
    pack_linears(layer)
    assert layer._packed is None
    assert torch.equal(layer.weight, before)


def test_a_tied_head_leaves_the_embedding_alone() -> None:
    communicator = single_rank_communicator()
    embedding = VocabParallelEmbedding(50, 16, communicator)
    head = VocabParallelHead(50, 16, communicator, tied=embedding.weight)
    initialize(embedding, seed=1)
    x = torch.randn(3, 16)
    expected = x @ embedding.weight.T
    pack_linears(head)
    assert not embedding.weight.is_meta
    torch.testing.assert_close(head.local_logits(x), expected)
