"""What every all-reduce backend must do, as one test class that each backend's test file runs.

A subclass names a factory: an importable function from a Group to a backend. Each test starts ranks, and every rank
makes the inputs of all ranks from seeds, so that it can work out the expected sum by itself. A factory with a method
`pick_device(rank)` gets its tensors there (tests/comm/on_gpus/gpu_ranks.py); the others get them on the CPU.
"""

from __future__ import annotations

import os
import signal
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from fastverify.comm.accuracy import (
    add_exactly,
    is_within,
    norm_error_bound,
    norm_exactly,
    residual_error_bound,
    sum_error_bound,
)
from fastverify.comm.backend import AllReduceBackend
from fastverify.comm.group import Group, close_group, create_group
from fastverify.errors import CommTimeoutError, UnsupportedError
from tests.ranks import run_ranks

Factory = Callable[[Group], AllReduceBackend]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CPU = torch.device("cpu")


class AllReduceContract:
    """Subclasses set `factory`, and smaller numbers where a backend is slow."""

    factory: Factory
    sizes = (1, 2, 15, 16, 17, 63, 1000, 4096, 5121, 40_001)
    calls = {2: 3000, 3: 600, 8: 60}
    names_the_late_rank = True

    @pytest.mark.parametrize("world_size", [2, 3, 4, 8])
    def test_answers(self, world_size: int) -> None:
        """Sums, fused norms and gathers; one test per world size, because starting ranks is what costs time."""
        answers = run_ranks(check_answers, world_size, type(self).factory, self.sizes)
        assert all(answer == answers[0] for answer in answers), "ranks hold different bits"

    @pytest.mark.parametrize("world_size", [2, 3, 8])
    def test_back_to_back_calls_of_mixed_sizes_do_not_mix(self, world_size: int) -> None:
        run_ranks(check_back_to_back, world_size, type(self).factory, self.calls[world_size])

    def test_waits_for_a_late_rank_and_refuses_what_it_cannot_sum(self) -> None:
        run_ranks(check_late_rank, 3, type(self).factory)

    def test_a_rank_that_never_comes_is_an_error(self) -> None:
        run_ranks(check_absent_rank, 3, type(self).factory, self.names_the_late_rank)

    def test_a_dead_rank_is_an_error_long_before_the_timeout(self) -> None:
        run_ranks(check_dead_rank, 3, type(self).factory, killed=(1,))

    def test_two_groups_at_once(self) -> None:
        run_ranks(check_two_groups, 3, type(self).factory)


@contextmanager
def joined(
    rank: int, world_size: int, rendezvous: str, factory: Factory, timeout_s: float = 30.0
) -> Iterator[AllReduceBackend]:
    """A backend on a group of its own; no rank leaves before all are done."""
    device = device_of(factory, rank)
    group = create_group(rank, world_size, rendezvous, timeout_s=timeout_s, device=device)
    backend = factory(group)
    yield backend
    backend.all_gather(torch.zeros(1, device=device))
    backend.close()
    close_group(group)


def device_of(factory: Factory, rank: int) -> torch.device:
    """Where this rank's tensors live."""
    pick_device = getattr(factory, "pick_device", None)
    return CPU if pick_device is None else pick_device(rank)


def make_inputs(
    world_size: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int, device: torch.device = CPU
) -> list[torch.Tensor]:
    """Every rank's input: magnitudes spread over ten powers of two, so that a sum in 16 bits would lose the small."""
    inputs = []
    for rank in range(world_size):
        generator = torch.Generator().manual_seed(1000 * seed + rank)
        scale = 2.0 ** torch.randint(-5, 6, shape, generator=generator)
        inputs.append((torch.randn(shape, generator=generator) * scale).to(dtype).to(device))
    return inputs


def sum_in_rank_order(inputs: list[torch.Tensor]) -> torch.Tensor:
    """The contract's sum, to the bit."""
    return _add_in_float32(inputs).to(inputs[0].dtype)


def sum_over_islands(inputs: list[torch.Tensor]) -> torch.Tensor:
    """The sum of each half of the ranks in rank order, and then of both, to the bit."""
    half = len(inputs) // 2
    return (_add_in_float32(inputs[:half]) + _add_in_float32(inputs[half:])).to(inputs[0].dtype)


def sum_to_the_bit(backend: AllReduceBackend, inputs: list[torch.Tensor]) -> torch.Tensor:
    """What this backend must answer."""
    return (sum_over_islands if backend.name == "islands" else sum_in_rank_order)(inputs)


def _add_in_float32(inputs: list[torch.Tensor]) -> torch.Tensor:
    total = inputs[0].float()
    for x in inputs[1:]:
        total = total + x.float()
    return total


def digest(x: torch.Tensor) -> bytes:
    """The bits of a tensor."""
    return x.contiguous().view(torch.uint8).cpu().numpy().tobytes()


def check_answers(rank: int, world_size: int, rendezvous: str, factory: Factory, sizes: tuple[int, ...]) -> int:
    with joined(rank, world_size, rendezvous, factory) as backend:
        check_that_16_bit_sums_would_fail(world_size)
        device = device_of(factory, rank)
        answers = check_sums(backend, rank, world_size, sizes, device)
        answers += check_fused_norms(backend, rank, world_size, device)
        check_all_gather(backend, rank, world_size, device)
    return zlib.crc32(b"".join(answers))


def check_sums(
    backend: AllReduceBackend, rank: int, world_size: int, sizes: tuple[int, ...], device: torch.device = CPU
) -> list[bytes]:
    answers = []
    for dtype in DTYPES:
        for size in sizes:
            inputs = make_inputs(world_size, (size,), dtype, size, device)
            x = inputs[rank].clone()
            assert backend.can_run(size, dtype).ok
            assert backend.all_reduce(x) is x
            assert is_within(x, add_exactly(inputs), sum_error_bound(inputs, dtype)), (dtype, size)
            assert torch.equal(x, sum_to_the_bit(backend, inputs)), (dtype, size)
            answers.append(digest(x))
    return answers


def check_that_16_bit_sums_would_fail(world_size: int) -> None:
    """The bound is worth something: a sum rounded to bf16 at every step breaks it on these inputs."""
    if world_size < 3:
        return
    inputs = make_inputs(world_size, (4096,), torch.bfloat16, seed=4096)
    total = inputs[0]
    for x in inputs[1:]:
        total = total + x
    exact = add_exactly(inputs)
    assert ((total.double() - exact).abs() > sum_error_bound(inputs, torch.bfloat16)).any()


def check_fused_norms(backend: AllReduceBackend, rank: int, world_size: int, device: torch.device = CPU) -> list[bytes]:
    answers = []
    for dtype in DTYPES:
        for rows, hidden_size in ((1, 320), (5, 320), (4, 7), (9, 1030), (64, 512)):
            inputs = make_inputs(world_size, (rows, hidden_size), dtype, rows, device)
            before, weights = make_inputs(2, (rows, hidden_size), dtype, 77, device)
            residual = before.clone()
            normed = backend.all_reduce_residual_rmsnorm(inputs[rank].clone(), residual, weights[0], 1e-5)
            assert normed.dtype == dtype
            assert is_within(residual, add_exactly([before, *inputs]), residual_error_bound(inputs, before))
            # The norm is defined on the residual as it was rounded.
            exact, bound = (f(residual, weights[0], 1e-5) for f in (norm_exactly, norm_error_bound))
            assert is_within(normed, exact, bound), (dtype, rows, hidden_size)
            answers += [digest(residual), digest(normed)]
    return answers


def check_all_gather(backend: AllReduceBackend, rank: int, world_size: int, device: torch.device = CPU) -> None:
    for dtype in (*DTYPES, torch.int64, torch.bool):
        for shape in ((), (1,), (3, 5), (2, 20_001)):
            inputs = [(x * 8).to(dtype) for x in make_inputs(world_size, shape, torch.float32, 3, device)]
            assert torch.equal(backend.all_gather(inputs[rank]), torch.stack(inputs)), (dtype, shape)


def check_back_to_back(rank: int, world_size: int, rendezvous: str, factory: Factory, calls: int) -> None:
    """Data differs from call to call, so a buffer that is overwritten or read too early gives a wrong sum."""
    sizes, device = (1, 700, 9, 3000, 64, 2, 20_000), device_of(factory, rank)
    with joined(rank, world_size, rendezvous, factory) as backend:
        bases = [make_inputs(world_size, (size,), torch.float32, size, device) for size in sizes]
        for call in range(calls):
            inputs = [base + call for base in bases[call % len(sizes)]]
            x = inputs[rank].clone()
            if call % 5 == 4:
                assert torch.equal(backend.all_gather(x), torch.stack(inputs)), call
            else:
                assert torch.equal(backend.all_reduce(x), sum_in_rank_order(inputs)), call


def check_late_rank(rank: int, world_size: int, rendezvous: str, factory: Factory) -> None:
    device = device_of(factory, rank)
    with joined(rank, world_size, rendezvous, factory) as backend:
        for late in range(world_size):
            if rank == late:
                time.sleep(0.15)
            assert backend.all_reduce(torch.ones(100, device=device))[0] == world_size
        for bad in (torch.ones(4, dtype=torch.int32, device=device), torch.ones(0, device=device)):
            assert not backend.can_run(bad.numel(), bad.dtype).ok
            with pytest.raises(UnsupportedError):
                backend.all_reduce(bad)


def check_absent_rank(rank: int, world_size: int, rendezvous: str, factory: Factory, names_the_rank: bool) -> None:
    group = create_group(rank, world_size, rendezvous, timeout_s=0.5)
    backend = factory(group)
    backend.all_reduce(torch.ones(100))
    if rank == 2:
        time.sleep(1.5)
        return
    with pytest.raises(CommTimeoutError, match="rank 2" if names_the_rank else "late") as caught:
        backend.all_reduce(torch.ones(100))
    assert "0.5" in str(caught.value)


def check_dead_rank(rank: int, world_size: int, rendezvous: str, factory: Factory) -> None:
    group = create_group(rank, world_size, rendezvous, timeout_s=30)
    backend = factory(group)
    backend.all_reduce(torch.ones(100))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start_s = time.monotonic()
    with pytest.raises(CommTimeoutError, match="rank 1 in|rank 1 ended"):
        backend.all_reduce(torch.ones(100))
    assert time.monotonic() - start_s < 5
    time.sleep(0.5)  # leaving at once would make this rank a dead one in the eyes of the other


def check_two_groups(rank: int, world_size: int, rendezvous: str, factory: Factory) -> None:
    """All ranks in one group and ranks 0 and 2 in another, used in turn."""
    from torch.distributed import FileStore, PrefixStore

    device = device_of(factory, rank)
    store = FileStore(rendezvous.removeprefix("file://"), world_size)
    everyone = factory(create_group(rank, world_size, PrefixStore("everyone", store), timeout_s=30, device=device))
    some = None
    if rank != 1:
        some = factory(create_group(rank // 2, 2, PrefixStore("some", store), timeout_s=30, device=device))
    for call in range(50):
        assert everyone.all_reduce(torch.full((500,), float(call + rank), device=device))[7] == 3 * call + 3
        if some is not None:
            assert some.all_reduce(torch.full((900,), float(call * rank), device=device))[7] == 2 * call
    everyone.all_gather(torch.zeros(1, device=device))
    everyone.close()
    if some is not None:
        some.close()
