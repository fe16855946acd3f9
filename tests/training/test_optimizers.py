"""Muon: updates are orthogonal and of AdamW's size; parameters are split between the two optimizers."""

import torch
from torch import nn

from fastverify.training.optimizers import Muon, build_optimizers, orthogonalize


def test_singular_values_become_one() -> None:
    generator = torch.Generator().manual_seed(0)
    for shape in ((2, 24, 64), (2, 64, 24)):
        values = torch.linalg.svdvals(orthogonalize(torch.randn(shape, generator=generator)))
        assert values.min() > 0.6
        assert values.max() < 1.3


def test_update_keeps_direction_and_has_the_size_of_adamw() -> None:
    weight = nn.Parameter(torch.zeros(32, 48))
    gradient = torch.randn(32, 48, generator=torch.Generator().manual_seed(1))
    weight.grad = gradient.clone()
    Muon([weight], lr=0.1, weight_decay=0.0).step()
    assert (weight * gradient).sum() < 0
    assert 0.5 * 0.02 < weight.pow(2).mean().sqrt() < 1.5 * 0.02


def test_weight_decay_shrinks_without_a_gradient_direction() -> None:
    weight = nn.Parameter(torch.ones(4, 4))
    weight.grad = torch.zeros(4, 4)
    Muon([weight], lr=0.5, weight_decay=0.1).step()
    assert torch.allclose(weight, torch.full((4, 4), 0.95))


def test_tables_and_vectors_go_to_adamw() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3))
    table = model[0].weight
    muon, adamw = build_optimizers(model, 0.1, 0.1, [table])
    assert [tuple(p.shape) for p in muon.param_groups[0]["params"]] == [(3, 4)]
    assert [[tuple(p.shape) for p in group["params"]] for group in adamw.param_groups] == [[(5, 4)], [(3,)]]
    assert adamw.param_groups[1]["weight_decay"] == 0.0
    assert len(build_optimizers(model, 0.1, 0.1, [table], use_muon=False)) == 1
