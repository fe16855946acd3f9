import gc
from collections.abc import Callable

import pytest
import torch

from fastverify.comm import ops
from fastverify.comm.communicator import Communicator, create_communicator, single_rank_communicator
from fastverify.comm.group import create_group
from fastverify.comm.stats import CommStats
from fastverify.errors import ConfigError, ShapeError, UnsupportedError
from tests.ranks import run_ranks

EPS = 1e-5
Answers = tuple[torch.Tensor, ...]
fv = torch.ops.fastverify


def test_names_are_found_kept_and_end_with_their_communicator() -> None:
    first, second = single_rank_communicator(), single_rank_communicator()
    name = ops.register(first)
    assert ops.register(first) == name
    assert ops.find(name) is first
    assert ops.register(second) != name
    assert ops.find(ops.register(first, "tp")) is first
    with pytest.raises(ConfigError, match="'tp' again"):
        ops.register(second, "tp")
    del first
    gc.collect()
    with pytest.raises(ConfigError, match=rf"got '{name}'.*register"):
        ops.find(name)
    assert ops.register(second, "tp") == "tp", "a name is free again once its communicator is gone"


def test_one_rank_answers_in_memory_of_its_own() -> None:
    communicator = single_rank_communicator()
    name = ops.register(communicator)
    x, residual = torch.randn(3, 8), torch.randn(3, 8)
    expected = residual + x
    normed = fv.all_reduce_residual_rmsnorm(x, residual, torch.ones(8), EPS, name)
    assert torch.equal(residual, expected), "the schema says that the residual is updated"
    torch.testing.assert_close(normed, torch.nn.functional.rms_norm(expected, (8,), eps=EPS))
    gathered, summed = fv.all_gather(x, name), fv.all_reduce(x, name)
    assert len({tensor.data_ptr() for tensor in (x, gathered, summed)}) == 3


def test_what_needs_a_gradient_or_has_gaps_is_refused() -> None:
    communicator = single_rank_communicator()
    name = ops.register(communicator)
    x = torch.ones(4, 4, requires_grad=True)
    with pytest.raises(UnsupportedError, match="no gradient.*no_grad"):
        fv.all_reduce(x, name)
    with torch.no_grad():
        assert torch.equal(fv.all_reduce(x, name), x)
        with pytest.raises(ShapeError, match=r"\(1, 4\).*contiguous"):
            fv.all_reduce_(x.t(), name)


@pytest.mark.ranks
def test_operators_keep_their_promises_to_the_compiler() -> None:
    run_ranks(check_promises, 2)


def check_promises(rank: int, world_size: int, rendezvous: str) -> None:
    with create_communicator(create_group(rank, world_size, rendezvous), "shm") as communicator:
        name = ops.register(communicator)
        x, residual, weight = torch.randn(3, 16), torch.randn(3, 16), torch.randn(16)
        for op, args in (
            (fv.all_reduce_, (x, name)),
            (fv.all_reduce, (x, name)),
            (fv.all_reduce_residual_rmsnorm, (x, residual, weight, EPS, name)),
            (fv.all_gather, (x, name)),
        ):
            torch.library.opcheck(op.default, args)
        communicator.all_gather(torch.zeros(1))


@pytest.mark.ranks
@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_compiled_code_gives_the_bits_of_eager_code(backend: str) -> None:
    run_ranks(check_compiled, 2, backend, "aot_eager", (layer, twice_in_place, independent), (3, 3, 5))


@pytest.mark.ranks
@pytest.mark.slow
def test_generated_code_gives_the_bits_of_eager_code() -> None:
    run_ranks(check_compiled, 2, "shm", "inductor", (twice_in_place, layer), (3,), timeout_s=100)


class Recorder(CommStats):
    """Every call in order, beside the totals."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []

    def add(self, phase: str, op: str, num_bytes: int, ns: int) -> None:
        self.calls.append((op, num_bytes))


def check_compiled(
    rank: int,
    world_size: int,
    rendezvous: str,
    backend: str,
    compiler: str,
    programs: tuple[Callable[..., Answers], ...],
    all_rows: tuple[int, ...],
) -> None:
    with create_communicator(create_group(rank, world_size, rendezvous), backend) as communicator:
        for program in programs:
            check_program(program, communicator, compiler, all_rows)
        communicator.all_gather(torch.zeros(1))


def layer(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, name: str) -> Answers:
    """As in a model: each norm feeds the next sum, and the residual is updated by both."""
    normed = fv.all_reduce_residual_rmsnorm(x * 2, residual, weight, EPS, name)
    normed = fv.all_reduce_residual_rmsnorm(normed + 1, residual, weight, EPS, name)
    return normed, fv.all_gather(fv.all_reduce(normed, name) * residual, name)


def twice_in_place(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, name: str) -> Answers:
    """The second sum must not be merged with the first, nor the reads between them moved."""
    fv.all_reduce_(x, name)
    between = x * weight
    fv.all_reduce_(x, name)
    fv.all_reduce_(residual, name)
    return between, x + residual


def independent(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, name: str) -> Answers:
    """Calls that share no tensor, of different sizes: on ranks that swapped them shm would raise."""
    first = fv.all_reduce(x, name)
    second = fv.all_gather(weight, name)
    fv.all_reduce_(residual, name)
    return first, second


def check_program(
    program: Callable[..., Answers], communicator: Communicator, compiler: str, all_rows: tuple[int, ...]
) -> None:
    """Same answers, same inputs afterwards, and the same calls in the same order."""
    name = ops.register(communicator)
    compiled = torch.compile(program, backend=compiler, fullgraph=True)
    generator = torch.Generator().manual_seed(communicator.rank)
    for rows in all_rows:
        inputs = [torch.randn(rows, 16, generator=generator) for _ in range(2)]
        runs = []
        for run in (program, compiled):
            x, residual = (tensor.clone() for tensor in inputs)
            communicator.stats = recorder = Recorder()
            with torch.no_grad():
                answers = run(x, residual, torch.linspace(0.5, 2.0, 16), name)
            runs.append(([*answers, x, residual], recorder.calls))
        (expected, expected_calls), (got, calls) = runs
        assert calls == expected_calls, program
        assert all(torch.equal(*pair) for pair in zip(got, expected, strict=True)), program


def test_a_compiler_sees_the_refusal_of_gradients() -> None:
    communicator = single_rank_communicator()
    name = ops.register(communicator)
    compiled = torch.compile(lambda x: fv.all_reduce(x * 2, name), backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match="no gradient"):
        compiled(torch.ones(4, requires_grad=True))
