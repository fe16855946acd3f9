"""The one object through which a model talks to the other ranks, and the record of what it said.

It adds to a backend: the choice of fused or separate norm, phases, and statistics. A single rank gets a communicator
whose operations are plain differentiable tensor code, so that training and torch.compile run through it unchanged.
With several ranks torch.compile needs the operators of ops.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter_ns
from typing import Self

import torch

from fastverify.comm.backend import AllReduceBackend, OutOfPlaceBackend, Support
from fastverify.comm.chooser import Choice, choose_auto, choose_gloo, choose_shm
from fastverify.comm.gpu.backends import GPU_BACKENDS
from fastverify.comm.gpu.chooser import choose_gpu
from fastverify.comm.group import Group, create_group
from fastverify.comm.local import LocalBackend
from fastverify.comm.profiled import ProfiledBackend
from fastverify.comm.rmsnorm import add_residual_rms_norm_, rms_norm
from fastverify.comm.stats import CommStats
from fastverify.errors import ConfigError

logger = logging.getLogger(__name__)

_CPU_CHOOSERS: dict[str, Callable[[Group], tuple[AllReduceBackend, Choice]]] = {
    "auto": choose_auto,
    "gloo": choose_gloo,
    "shm": choose_shm,
}


class Communicator:
    """Collectives of one group, over one backend. Every rank makes the same calls in the same order."""

    def __init__(
        self, group: Group, backend: AllReduceBackend, *, fuse_rmsnorm: bool = True, choice: Choice | None = None
    ) -> None:
        self.group = group
        self.fuse_rmsnorm = fuse_rmsnorm
        self.choice = choice or Choice(backend.name, "given")
        self.stats = CommStats()
        self._use(backend)
        self._phase = "none"

    @property
    def rank(self) -> int:
        """This process's number in the group."""
        return self.group.rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.group.world_size

    @property
    def backend_name(self) -> str:
        """The backend that really runs, never "auto"."""
        return self._backend.name

    @property
    def choice_reason(self) -> str:
        """Why that backend, in one sentence; the measurements are in `choice`."""
        return self.choice.reason

    def set_phase(self, phase: str) -> None:
        """Name the part of the decoding cycle that the next calls belong to, for `stats`."""
        self._phase = phase

    def set_profiling(self, is_profiling: bool) -> None:
        """Show the next calls to a torch profiler, or stop doing so; gloo and kernels on a GPU show themselves."""
        if isinstance(self._backend, ProfiledBackend):
            self._use(self._backend.inner)
        if is_profiling and self._backend.name != "gloo" and self.group.device.type == "cpu":
            self._use(ProfiledBackend(self._backend))

    def can_run(self, x: torch.Tensor) -> Support:
        """Whether an all-reduce of such a tensor runs here, by its size and dtype only; never raises."""
        return self._backend.can_run(x.numel(), x.dtype)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum of `x` over the ranks. `x` is contiguous and holds the result too when there are several ranks."""
        start_ns = perf_counter_ns()
        summed = self._backend.all_reduce(x)
        self.stats.add(self._phase, "all_reduce", x.nbytes, perf_counter_ns() - start_ns)
        return summed

    def all_reduce_residual_rmsnorm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`(RMSNorm(new_residual) * weight, new_residual)` with new_residual = residual + sum over ranks of x.

        Use the returned residual: with several ranks it is `residual` itself, updated in place; with one rank it is a
        new tensor, so that gradients flow. `x` may be overwritten.
        Shapes: x, residual [rows, hidden] (leading dimensions may be more); weight [hidden].
        """
        if not self.fuse_rmsnorm:
            return add_residual_rms_norm_(self.all_reduce(x), residual, weight, eps), residual
        start_ns = perf_counter_ns()
        normed = self._backend.all_reduce_residual_rmsnorm(x, residual, weight, eps)
        self.stats.add(self._phase, "all_reduce_residual_rmsnorm", x.nbytes, perf_counter_ns() - start_ns)
        return normed, residual

    def all_reduce_copy(self, x: torch.Tensor) -> torch.Tensor:
        """Sum of `x` over the ranks as a new tensor; `x` stays. Without a copy where the backend works out of place."""
        start_ns = perf_counter_ns()
        summed = torch.empty_like(x)
        if self._out_of_place is not None:
            self._out_of_place.all_reduce_out(x, summed)
        else:
            self._backend.all_reduce(summed.copy_(x))
        self.stats.add(self._phase, "all_reduce", x.nbytes, perf_counter_ns() - start_ns)
        return summed

    def all_reduce_residual_rmsnorm_copy(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """`residual += sum over ranks of x`; returns the norm as a new tensor; `x` stays."""
        if not self.fuse_rmsnorm:
            return add_residual_rms_norm_(self.all_reduce_copy(x), residual, weight, eps)
        start_ns = perf_counter_ns()
        if self._out_of_place is not None:
            normed = self._out_of_place.all_reduce_residual_rmsnorm_out(x, residual, weight, eps, torch.empty_like(x))
        else:
            normed = self._backend.all_reduce_residual_rmsnorm(x.clone(), residual, weight, eps)
        self.stats.add(self._phase, "all_reduce_residual_rmsnorm", x.nbytes, perf_counter_ns() - start_ns)
        return normed

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank's contiguous `x`, in rank order, as [world_size, *x.shape]."""
        start_ns = perf_counter_ns()
        gathered = self._backend.all_gather(x)
        self.stats.add(self._phase, "all_gather", x.nbytes, perf_counter_ns() - start_ns)
        return gathered

    def close(self) -> None:
        """Free the backend; the group stays open. Calling twice is harmless."""
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _use(self, backend: AllReduceBackend) -> None:
        self._backend = backend
        self._out_of_place = backend if isinstance(backend, OutOfPlaceBackend) else None


class SingleRankCommunicator(Communicator):
    """No ranks to talk to: nothing is timed, nothing is written in place."""

    def __init__(self) -> None:
        group = create_group(0, 1)
        super().__init__(group, LocalBackend(group), choice=Choice("local", "one rank needs no collective"))

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """`x` itself."""
        return x

    def all_reduce_residual_rmsnorm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The reference norm of `residual + x`, and that sum."""
        new_residual = residual + x
        return rms_norm(new_residual, weight, eps), new_residual

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """`x` with a leading dimension of 1."""
        return x.unsqueeze(0)


def single_rank_communicator() -> Communicator:
    """For one process: training, tests, and tensor-parallel size 1."""
    return SingleRankCommunicator()


def create_communicator(group: Group, backend: str = "auto", *, fuse_rmsnorm: bool = True) -> Communicator:
    """A communicator over the named backend; `backend_name` and `choice_reason` say what "auto" became.

    On CPUs: auto, gloo, shm. On GPUs: auto and the names of gpu/backends.py; what was measured is kept in a file, and
    the first time takes a few seconds. Every rank of the group calls this with the same arguments.
    Raises: ConfigError for another name; EnvironmentMissingError where the backend cannot run on every rank.
    """
    if group.world_size == 1:
        return SingleRankCommunicator()
    on_gpu = group.device.type == "cuda"
    names = ("auto", *GPU_BACKENDS) if on_gpu else tuple(_CPU_CHOOSERS)
    if backend not in names:
        raise ConfigError(
            f"an all-reduce backend of a group on {group.device.type} is one of {', '.join(names)}, got {backend!r}."
        )
    chosen, choice = choose_gpu(group, backend) if on_gpu else _CPU_CHOOSERS[backend](group)
    logger.info("all-reduce over %s: %s", chosen.name, choice.reason)
    return Communicator(group, chosen, fuse_rmsnorm=fuse_rmsnorm, choice=choice)
