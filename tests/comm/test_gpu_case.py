import pytest
import torch

from fastverify.comm.gpu_case import EPS, Case, digest
from fastverify.comm.gpu_measure import count_calls
from fastverify.comm.gpu_table import Op
from fastverify.comm.group import Group
from fastverify.comm.rmsnorm import add_residual_quick_norm_, add_residual_rms_norm_

NORM: Op = "all_reduce_residual_rmsnorm"


def make_cases(op: Op, num_bytes: int, row_elements: int, world_size: int) -> list[Case]:
    """Every rank's view of one case, in one process."""
    processes = tuple(range(1, world_size + 1))
    groups = [Group(rank, world_size, object(), "g", 1.0, processes) for rank in range(world_size)]  # type: ignore[arg-type]
    return [Case(op, num_bytes, row_elements, group, torch.bfloat16) for group in groups]


def add(cases: list[Case], rounds_each: bool = False) -> torch.Tensor:
    """The sum of every rank's x, rounded once or at every addition, as every rank would get it."""
    total = cases[0].tensors.x.float()
    for case in cases[1:]:
        total = total + case.tensors.x.float()
        if rounds_each:
            total = total.bfloat16().float()
    return total.bfloat16()


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_sums_are_graded_by_how_they_were_rounded(world_size: int) -> None:
    cases = make_cases("all_reduce", 8192, 0, world_size)
    assert cases[0].judge(add(cases)) == "contract"
    rounded = "contract" if world_size == 2 else "rounded"
    assert cases[0].judge(add(cases, rounds_each=True)) == rounded
    wrong = add(cases)
    wrong[0, 100] += 0.25
    assert cases[0].judge(wrong) == "wrong"
    wrong[0, 100] = float("nan")
    assert cases[0].judge(wrong) == "wrong"
    assert cases[0].judge(cases[0].tensors.x) == "wrong", "no sum at all"


@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_a_chain_must_end_where_it_must(world_size: int) -> None:
    cases = make_cases("all_reduce", 4096, 0, world_size)
    first = add(cases)
    num_calls = count_calls("all_reduce", torch.bfloat16, world_size)
    x = first
    for _ in range(num_calls - 1):
        x = (x.float() * world_size).bfloat16()
    assert cases[0].judge_chain(num_calls, first, x, "contract")
    assert not cases[0].judge_chain(num_calls, first, x * world_size, "rounded"), "one call too many"
    x[0, 7] *= 1.01
    assert cases[0].judge_chain(num_calls, first, x, "rounded"), "a library may round at every addition"
    assert cases[0].judge_chain(num_calls, first, x, "contract") == (world_size == 3), "else exact to the bit"


@pytest.mark.parametrize("norm", [add_residual_rms_norm_, add_residual_quick_norm_])
@pytest.mark.parametrize("world_size", [2, 8])
def test_norms_are_judged_by_residual_and_norm(world_size: int, norm) -> None:  # type: ignore[no-untyped-def]
    cases = make_cases(NORM, 4 * 512 * 2, 512, world_size)
    case = cases[0]
    normed = norm(add(cases), case.tensors.residual, case.tensors.weight, EPS)
    assert case.judge(normed) == "contract"
    assert case.judge(normed * 1.05) == "wrong"
    case.tensors.residual[0, 0] += 1
    assert case.judge(normed) == "wrong"
    case.reset()
    # As a library's chain runs: x grows by every sum, the residual with it, and the norm must survive that.
    x, num_calls = add(cases), count_calls(NORM, torch.bfloat16, world_size)
    for _ in range(num_calls):
        normed = norm(x, case.tensors.residual, case.tensors.weight, EPS)
        x = (x.float() * world_size).bfloat16()
    assert case.judge_chain(num_calls, normed, normed, "contract")
    assert not case.judge_chain(num_calls, normed, normed + 1, "contract")


def test_gathers_hold_every_rank_in_order() -> None:
    cases = make_cases("all_gather", 1024, 0, 3)
    parts = [case.tensors.x for case in cases]
    assert cases[1].judge(torch.stack(parts)) == "contract"
    assert cases[1].judge(torch.stack(parts[::-1])) == "wrong"


def test_ranks_have_inputs_of_their_own_and_one_residual() -> None:
    first, second = make_cases(NORM, 1024, 64, 2)
    assert not torch.equal(first.tensors.x, second.tensors.x)
    assert torch.equal(first.tensors.residual, second.tensors.residual)
    before = first.tensors.x.clone()
    first.tensors.x.zero_()
    first.tensors.residual.zero_()
    first.reset()
    assert torch.equal(first.tensors.x, before)
    assert torch.equal(first.tensors.residual, second.tensors.residual)


def test_a_digest_sees_one_bit_and_the_order() -> None:
    x = torch.randn(1000).bfloat16()
    changed = x.clone()
    changed.view(torch.int16)[500] ^= 1
    assert digest(x) == digest(x.clone())
    assert len({digest(x), digest(changed), digest(x.flip(0))}) == 3
