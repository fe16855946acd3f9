"""What a CudaRank refuses before it launches anything; no GPU is needed to see that."""

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fastverify.comm.cuda.rank import CudaRank  # noqa: E402
from fastverify.errors import ShapeError  # noqa: E402

DEVICE = torch.device("cuda", 1)


def tensor(shape: tuple[int, ...] = (2, 64), **changes: Any) -> SimpleNamespace:
    """Looks like a float32 tensor on GPU 1."""
    facts = {
        "shape": torch.Size(shape), "dtype": torch.float32, "device": DEVICE, "is_cuda": True, "nbytes": 512,
        "is_contiguous": lambda: True, "data_ptr": lambda: 4096, "stride": lambda: (64, 1)[-len(shape):],
        "dim": lambda: len(shape),
    }  # fmt: skip
    return SimpleNamespace(**facts | changes)


def open_rank() -> CudaRank:
    rank = object.__new__(CudaRank)
    rank.device = DEVICE
    return rank


def test_a_tensor_on_another_gpu_is_refused() -> None:
    """A kernel would read it over the link, or end the context of every process that shares it."""
    open_rank()._check(tensor(), tensor())
    for other in (torch.device("cuda", 0), torch.device("cpu")):
        with pytest.raises(ShapeError, match=f"contiguous on cuda:1 .* on {other}"):
            open_rank()._check(tensor(), tensor(device=other))


def test_a_weight_is_checked_like_any_memory() -> None:
    open_rank()._check_vectors(tensor(), tensor((64,)))
    for change in (
        {"device": torch.device("cpu"), "is_cuda": False},
        {"is_contiguous": lambda: False},
        {"data_ptr": lambda: 4100},
    ):
        with pytest.raises(ShapeError, match="contiguous on cuda:1"):
            open_rank()._check_vectors(tensor(), tensor((64,), **change))
    with pytest.raises(ShapeError, match="weight and bias"):
        open_rank()._check_vectors(tensor(), tensor((63,)))
