"""The shm backend beyond the contract: pieces, epochs that wrap, every vector set, nothing left behind."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

from fastverify.comm import _shm
from fastverify.comm.group import Group, create_group
from fastverify.comm.shm import NEVER, ShmBackend, find_support
from fastverify.errors import CommTimeoutError, EnvironmentMissingError, ShapeError, UnsupportedError
from tests.contracts.all_reduce_contract import (
    DTYPES,
    AllReduceContract,
    check_back_to_back,
    check_fused_norms,
    check_sums,
    digest,
    joined,
    make_inputs,
)
from tests.ranks import run_ranks

PIECE_BYTES = 8192


def one_shot(group: Group) -> ShmBackend:
    """Default slots: no test message is cut into pieces."""
    return ShmBackend(group)


def streamed_two_shot_in_pieces(group: Group) -> ShmBackend:
    """Slots of two pages, so that most messages take several pieces, and two streamed rounds even for one element."""
    backend = ShmBackend(group, slot_bytes=PIECE_BYTES)
    backend.set_thresholds(two_shot_min_bytes=1, stream_min_bytes=1)
    return backend


def about_to_wrap(group: Group) -> ShmBackend:
    """Epochs that wrap from 2^32 - 1 to 0 during the test, and every way to work in turn."""
    backend = ShmBackend(group, slot_bytes=PIECE_BYTES, first_epoch=2**32 - 40)
    backend.set_thresholds(two_shot_min_bytes=1024, stream_min_bytes=2048)
    return backend


@pytest.mark.ranks
class TestShmOneShot(AllReduceContract):
    factory = one_shot


@pytest.mark.ranks
class TestShmTwoShotStreamed(AllReduceContract):
    factory = streamed_two_shot_in_pieces


@pytest.mark.ranks
def test_epochs_may_wrap() -> None:
    run_ranks(check_back_to_back, 3, about_to_wrap, 100)


@pytest.mark.ranks
def test_every_vector_set_gives_the_same_sums() -> None:
    names = _shm.list_simd()
    assert "plain" in names
    run_ranks(check_vector_sets, 2, names)


def check_vector_sets(rank: int, world_size: int, rendezvous: str, names: list[str]) -> None:
    answers = []
    for name in names:
        os.environ["FASTVERIFY_SIMD"] = name
        with joined(rank, world_size, f"{rendezvous}-{name}", one_shot) as backend:
            assert isinstance(backend, ShmBackend)
            assert backend.simd == name
            check_fused_norms(backend, rank, world_size)
            answers.append(
                check_sums(backend, rank, world_size, (1, 33, 1000)) + [special_sums(backend, rank, d) for d in DTYPES]
            )
    assert all(answer == answers[0] for answer in answers)


def special_sums(backend: ShmBackend, rank: int, dtype: torch.dtype) -> bytes:
    """Infinities, the edge of overflow, denormals, ties and NaN, as torch rounds them."""
    edge = torch.finfo(dtype).max
    left = [
        torch.inf,
        -torch.inf,
        torch.inf,
        edge,
        -edge,
        edge,
        2.0**-24,
        2.0**-126,
        2.0**-133,
        1.0,
        1.0,
        -0.0,
        torch.nan,
    ]
    right = [1.0, 1.0, -torch.inf, edge, -edge, 16.0, 2.0**-25, 2.0**-133, 2.0**-133, 2.0**-8, 2.0**-11, -0.0, 1.0]
    inputs = [torch.tensor(values * 5).to(dtype) for values in (left, right)]
    x = backend.all_reduce(inputs[rank].clone())
    expected = (inputs[0].float() + inputs[1].float()).to(dtype)
    assert torch.equal(x.nan_to_num(123.0), expected.nan_to_num(123.0))
    assert torch.equal(x.signbit() & ~x.isnan(), expected.signbit() & ~expected.isnan())
    return digest(x)


@pytest.mark.ranks
def test_misuse_is_refused_by_name() -> None:
    run_ranks(check_misuse, 2)


def check_misuse(rank: int, world_size: int, rendezvous: str) -> None:
    backend = ShmBackend(create_group(rank, world_size, rendezvous, timeout_s=10), slot_bytes=PIECE_BYTES)
    with pytest.raises(ShapeError, match="contiguous"):
        backend.all_reduce(torch.ones(4, 4).t())
    x, weight = torch.ones(2, 8), torch.ones(8)
    with pytest.raises(ShapeError, match=r"one shape"):
        backend.all_reduce_residual_rmsnorm(x, torch.ones(3, 8), weight, 1e-5)
    with pytest.raises(UnsupportedError, match="one dtype"):
        backend.all_reduce_residual_rmsnorm(x, x.bfloat16(), weight, 1e-5)
    with pytest.raises(ShapeError, match=r"rank 0 is in all_reduce of 16|rank 1 is in all_reduce of 32"):
        backend.all_reduce(torch.ones(4 * (rank + 1)))
    backend.close()
    backend.close()
    with pytest.raises(CommTimeoutError, match="closed"):
        backend.all_reduce(torch.ones(4))


@pytest.mark.ranks
def test_a_row_longer_than_a_slot_still_norms() -> None:
    run_ranks(check_long_row, 2)


def check_long_row(rank: int, world_size: int, rendezvous: str) -> None:
    with joined(rank, world_size, rendezvous, streamed_two_shot_in_pieces) as backend:
        inputs = make_inputs(world_size, (2, 3000), torch.float32, seed=1)
        residual = torch.ones(2, 3000)
        normed = backend.all_reduce_residual_rmsnorm(inputs[rank].clone(), residual, torch.ones(3000), 1e-5)
        assert torch.equal(residual, inputs[0] + inputs[1] + 1)
        torch.testing.assert_close(normed, torch.nn.functional.rms_norm(residual, (3000,), eps=1e-5))


@pytest.mark.ranks
def test_a_long_wait_leaves_the_interpreter_to_others_and_can_be_interrupted() -> None:
    run_ranks(check_long_wait, 2)


def check_long_wait(rank: int, world_size: int, rendezvous: str) -> None:
    with joined(rank, world_size, rendezvous, one_shot) as backend:
        if rank == 1:
            time.sleep(1.0)
        else:
            ticks: list[float] = []
            stop = threading.Event()
            thread = threading.Thread(
                target=lambda: [ticks.append(time.monotonic()) for _ in iter(lambda: stop.wait(0.01), True)]
            )
            thread.start()
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            with pytest.raises(KeyboardInterrupt):
                backend.all_reduce(torch.ones(10))
            stop.set()
            thread.join()
            assert len(ticks) > 10
        # Rank 0 gave its input before it was interrupted, so this is the second call of both.
        if rank == 1:
            backend.all_reduce(torch.ones(10))
        assert backend.all_reduce(torch.full((10,), 2.0))[0] == 4.0


@pytest.mark.ranks
def test_a_closed_peer_is_named() -> None:
    run_ranks(check_closed_peer, 2)


def check_closed_peer(rank: int, world_size: int, rendezvous: str) -> None:
    backend = ShmBackend(create_group(rank, world_size, rendezvous, timeout_s=10))
    if rank == 1:
        backend.close()
        time.sleep(0.5)
    else:
        with pytest.raises(CommTimeoutError, match="rank 1 .*closed"):
            backend.all_reduce(torch.ones(4))


@pytest.mark.ranks
def test_nothing_stays_in_dev_shm_even_after_a_kill(tmp_path: Path) -> None:
    run_ranks(check_killed, 2, tmp_path, killed=(0, 1))
    assert not segment_of(tmp_path).exists()


def check_killed(rank: int, world_size: int, rendezvous: str, folder: Path) -> None:
    group = create_group(rank, world_size, rendezvous, timeout_s=10)
    (folder / str(rank)).write_text(group.name)
    backend = ShmBackend(group)
    backend.all_reduce(torch.ones(4))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.ranks
def test_a_rank_that_dies_before_it_maps_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    run_ranks(check_dies_early, 3, tmp_path, killed=(1,))
    assert not segment_of(tmp_path).exists()


def check_dies_early(rank: int, world_size: int, rendezvous: str, folder: Path) -> None:
    group = create_group(rank, world_size, rendezvous, timeout_s=20)
    (folder / str(rank)).write_text(group.name)
    # Not earlier, or the others could not connect, which is another failure.
    dist_barrier(group)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(CommTimeoutError, match="rank 1"):
        ShmBackend(group)
    time.sleep(0.3)


def dist_barrier(group: Group) -> None:
    assert group.torch_group is not None
    group.torch_group.barrier().wait()


def segment_of(folder: Path) -> Path:
    """Where the shared memory was while it had a name; every rank wrote down the same one."""
    names = {path.read_text() for path in folder.iterdir()}
    assert len(names) == 1
    return Path("/dev/shm") / names.pop()


def test_says_why_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTVERIFY_SIMD", "altivec")
    assert "altivec" in find_support(2).reason
    with pytest.raises(EnvironmentMissingError, match="altivec"):
        ShmBackend(create_group(0, 1))
    monkeypatch.delenv("FASTVERIFY_SIMD")
    assert find_support(2).ok
    assert "--shm-size" in find_support(2, slot_bytes=NEVER // 8).reason
    with pytest.raises(UnsupportedError, match="2 to 64 ranks"):
        ShmBackend(create_group(0, 1))
