"""How answers are judged: right ones pass, each kind of wrong one does not."""

import pytest
import torch

from fastverify.comm.gpu.case import Inputs, count_calls, digest, is_chain_right, judge, make_inputs, may_be_used
from fastverify.comm.gpu.steps import EPS, Operation, SlotPool, Step
from fastverify.comm.gpu.table import NORM, Accuracy, Op
from fastverify.comm.rmsnorm import (
    add_residual_quick_norm_,
    add_residual_rms_norm_,
    add_residual_rounded_once_norm_,
)

CPU = torch.device("cpu")


def inputs_of(world_size: int, shape: tuple[int, int] = (4, 512)) -> Inputs:
    return make_inputs(shape, world_size, torch.bfloat16, CPU)


def add(terms: tuple[torch.Tensor, ...], rounds_each: bool = False) -> torch.Tensor:
    """The sum rounded once or at every addition."""
    total = terms[0].float()
    for term in terms[1:]:
        total = total + term.float()
        if rounds_each:
            total = total.bfloat16().float()
    return total.bfloat16()


def judge_once(inputs: Inputs, op: Op, step: Step) -> Accuracy:
    operation = Operation(step, SlotPool(inputs.residual, 1), op)
    operation.pool.fill(inputs.random[0], inputs.residual)
    operation.call()
    return judge(operation, inputs)


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_sums_are_graded_by_how_they_were_rounded(world_size: int) -> None:
    inputs = inputs_of(world_size)

    def grade(answer: torch.Tensor) -> Accuracy:
        return judge_once(inputs, "all_reduce", lambda x, slot: answer)

    assert grade(add(inputs.random)) == "contract"
    assert grade(add(inputs.random, rounds_each=True)) == ("contract" if world_size == 2 else "rounded")
    wrong = add(inputs.random)
    wrong[0, 100] += 0.25
    assert grade(wrong) == "wrong"
    wrong[0, 100] = float("nan")
    assert grade(wrong) == "wrong"
    assert grade(inputs.random[0]) == "wrong", "no sum at all"


def test_who_may_round_at_every_addition() -> None:
    assert may_be_used("contract", "push", 8)
    assert not may_be_used("rounded", "push", 8)
    assert may_be_used("rounded", "nccl", 8)
    assert not may_be_used("rounded", "nccl", 2), "a sum of two has one rounding"
    assert not may_be_used("wrong", "nccl", 8)


def run_chain(inputs: Inputs, num_calls: int, op: Op, step: Step) -> Operation:
    operation = Operation(step, SlotPool(inputs.residual, 1), op)
    operation.pool.fill(inputs.integers[0], inputs.residual)
    for _ in range(num_calls):
        operation.call()
    return operation


@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_a_chain_must_end_where_it_must(world_size: int) -> None:
    inputs = inputs_of(world_size)
    num_calls = count_calls(20, torch.bfloat16, world_size)

    def sum_(x: torch.Tensor, slot: object) -> torch.Tensor:
        """All ranks hold the same after the first call."""
        is_first = torch.equal(x, inputs.integers[0])
        return add(inputs.integers) if is_first else (x.float() * world_size).bfloat16()

    operation = run_chain(inputs, num_calls, "all_reduce", sum_)
    assert is_chain_right(operation, inputs, num_calls, "contract")
    assert not is_chain_right(operation, inputs, num_calls - 1, "rounded"), "one call too many"
    nonzero = int(operation.outputs[0].view(-1).nonzero()[0])
    operation.outputs[0].view(-1)[nonzero] *= 1.01
    is_power = world_size & (world_size - 1) == 0
    assert is_chain_right(operation, inputs, num_calls, "rounded") != is_power, "else exact to the bit"


def test_the_integers_of_a_chain_have_no_rounding() -> None:
    inputs = inputs_of(8)
    assert torch.equal(add(inputs.integers), add(inputs.integers, rounds_each=True))
    assert all(part.abs().max() == 4 for part in inputs.integers)
    assert not torch.equal(inputs.integers[0], inputs.integers[1])


@pytest.mark.parametrize("norm", [add_residual_rms_norm_, add_residual_quick_norm_, add_residual_rounded_once_norm_])
@pytest.mark.parametrize("world_size", [2, 8])
def test_norms_are_judged_by_residual_and_norm(world_size: int, norm) -> None:  # type: ignore[no-untyped-def]
    inputs = inputs_of(world_size)

    def right(x: torch.Tensor, slot) -> torch.Tensor:  # type: ignore[no-untyped-def]
        return norm(add(inputs.random), slot.residual, inputs.weight, EPS)

    assert judge_once(inputs, NORM, right) == "contract"
    assert judge_once(inputs, NORM, lambda x, slot: right(x, slot) * 1.05) == "wrong"

    def forgets_one_rank(x: torch.Tensor, slot) -> torch.Tensor:  # type: ignore[no-untyped-def]
        return norm(add(inputs.random[1:]), slot.residual, inputs.weight, EPS)

    assert judge_once(inputs, NORM, forgets_one_rank) == "wrong", "a right norm of a wrong residual"


def test_a_chain_of_norms_is_the_norm_of_what_it_left() -> None:
    inputs = inputs_of(8)
    num_calls = count_calls(50, torch.bfloat16, 8)

    def step(x: torch.Tensor, slot) -> torch.Tensor:  # type: ignore[no-untyped-def]
        return add_residual_quick_norm_((x.float() * 8).bfloat16(), slot.residual, inputs.weight, EPS)

    operation = run_chain(inputs, num_calls, NORM, step)
    assert operation.outputs[0].isfinite().all()
    assert is_chain_right(operation, inputs, num_calls, "contract")
    operation.outputs[0][0, 0] += 1
    assert not is_chain_right(operation, inputs, num_calls, "contract")


def test_gathers_hold_every_rank_in_order() -> None:
    inputs = inputs_of(3, (1, 512))
    assert judge_once(inputs, "all_gather", lambda x, slot: torch.stack(inputs.random)) == "contract"
    assert judge_once(inputs, "all_gather", lambda x, slot: torch.stack(inputs.random[::-1])) == "wrong"
    operation = run_chain(inputs, 3, "all_gather", lambda x, slot: torch.stack([x, *inputs.integers[1:]]))
    assert is_chain_right(operation, inputs, 3, "contract"), "every gather is of the input, not of the one before"


def test_a_digest_sees_one_bit_the_order_and_which_tensor() -> None:
    x = torch.randn(1000).bfloat16()
    changed = x.clone()
    changed.view(torch.int16)[500] ^= 1
    assert digest([x]) == digest([x.clone()])
    assert len({digest([x]), digest([changed]), digest([x.flip(0)]), digest([x, changed]), digest([changed, x])}) == 5


@pytest.mark.parametrize("world_size", [3, 5, 6, 7])
def test_a_float32_chain_of_any_number_of_ranks_is_judged(world_size: int) -> None:
    """It rounds at every addition, and still less than once per call in sum."""
    inputs = make_inputs((4, 512), world_size, torch.float32, CPU)
    num_calls = count_calls(50, torch.float32, world_size)

    def sum_(x: torch.Tensor, slot: object) -> torch.Tensor:
        terms = inputs.integers if torch.equal(x, inputs.integers[0]) else (x,) * world_size
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total

    assert is_chain_right(run_chain(inputs, num_calls, "all_reduce", sum_), inputs, num_calls, "contract")

    def sum_wrongly(x: torch.Tensor, slot: object) -> torch.Tensor:
        return sum_(x, slot) * (1 + 1e-5)

    assert not is_chain_right(run_chain(inputs, num_calls, "all_reduce", sum_wrongly), inputs, num_calls, "contract")
