"""MSCCL++'s packet all-reduce behind the contract, through its documented Python API.

MSCCL++ is built from its source repository (C++20, CUDA). The adapter follows its examples/torch-integration as of 0.8
to 0.10: CommGroup over a torch group, the default algorithms on a scratch buffer, `execute` with raw pointers. It takes
packet algorithms that need no NVLink multicast.
NEVER RUN: no machine with MSCCL++ was at hand. Tests hold it against a fake of that API.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from fastverify.comm.backend import SUPPORTED, AllReduceBackend, Support
from fastverify.comm.group import Group
from fastverify.comm.peers.peer_backend import FLOATS, Limits, OutOfPlacePeer, has_module_file
from fastverify.comm.peers.peer_gpus import check_capability, check_native_atomics, check_own_gpus, first_refusal
from fastverify.comm.peers.torch_groups import check_default_group, open_torch_group
from fastverify.errors import EnvironmentMissingError, FastverifyError, UnsupportedError
from fastverify.units import BYTES_PER_MB

MAX_BYTES = 1 * BYTES_PER_MB
_SCRATCH_BYTES = 128 * BYTES_PER_MB
_MULTIPLE = 16
# Best first; names of the default algorithms (src/ext/collectives). The nvls ones are left out on purpose.
_ALGORITHMS = ("default_allreduce_allpair_packet", "default_allreduce_packet")
_FLAGS = 128


def find_support(group: Group, name: str = "mscclpp") -> Support:
    """Whether this rank could run it."""
    support = first_refusal(check_own_gpus(group, "MSCCL++"), _check_package())
    if not support.ok:
        return support
    return first_refusal(
        check_capability(group, "MSCCL++", (8, 9, 10)),
        check_native_atomics(group, "MSCCL++"),
        check_default_group(group, "MSCCL++"),
    )


def create(group: Group, name: str = "mscclpp") -> AllReduceBackend:
    """Connect the ranks. Raises EnvironmentMissingError where it cannot run."""
    support = find_support(group, name)
    if not support.ok:
        raise EnvironmentMissingError(f"the {name} backend cannot run: {support.reason}.")
    return MscclppBackend(group)


def _check_package() -> Support:
    if find_spec("mscclpp") is None:
        return Support(ok=False, reason="the package mscclpp is not installed; it is built from its source repository")
    if not has_module_file("mscclpp", "ext"):
        return Support(ok=False, reason="this MSCCL++ has no mscclpp.ext with default algorithms, which came with 0.8")
    return SUPPORTED


class MscclppBackend(OutOfPlacePeer):
    """One communicator and its packet algorithm."""

    name = "mscclpp"
    limits = Limits("MSCCL++'s packet all-reduce", FLOATS, MAX_BYTES, multiple=_MULTIPLE)

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._library: Any = import_module("mscclpp")
        for part in ("mscclpp.ext", "mscclpp.utils"):
            import_module(part)
        with torch.cuda.device(self._device):
            self._comm: Any = self._library.CommGroup(torch_group=open_torch_group(group, "MSCCL++"))
            buffer = self._library.RawGpuBuffer(_SCRATCH_BYTES)
            self._scratch = torch.utils.dlpack.from_dlpack(buffer.to_dlpack(data_type=str(torch.float16)))
            self._flags = torch.ones(_FLAGS, dtype=torch.int32, device=self._device)
            self._algorithm: Any = choose_algorithm(self._build())

    def _build(self) -> Any:
        """The default algorithms; later versions make the flag buffer themselves."""
        build = self._library.ext.AlgorithmCollectionBuilder().build_default_algorithms
        arguments = {
            "scratch_buffer": self._scratch.data_ptr(),
            "scratch_buffer_size": self._scratch.nbytes,
            "rank": self._group.rank,
        }
        if "flag_buffer" in inspect.signature(build).parameters:
            arguments |= {"flag_buffer": self._flags.data_ptr(), "flag_buffer_size": self._flags.nbytes}
        return build(**arguments)

    def _sum(self, x: torch.Tensor, out: torch.Tensor) -> None:
        status = self._algorithm.execute(
            comm=self._comm.communicator,
            input_buffer=x.data_ptr(),
            output_buffer=out.data_ptr(),
            input_size=x.nbytes,
            output_size=out.nbytes,
            dtype=self._library.utils.torch_dtype_to_mscclpp_dtype(x.dtype),
            op=self._library.ReduceOp.SUM,
            stream=torch.cuda.current_stream(self._device).cuda_stream,
        )
        if status:
            raise FastverifyError(f"MSCCL++ failed in an all-reduce of {x.nbytes} bytes with result {status}.")

    def _free(self) -> None:
        torch.cuda.synchronize(self._device)
        del self._algorithm, self._scratch, self._comm


def choose_algorithm(algorithms: Any) -> Any:
    """The best packet all-reduce of a collection. Raises UnsupportedError where there is none."""
    reductions = {algorithm.name: algorithm for algorithm in algorithms if algorithm.collective == "allreduce"}
    for name in _ALGORITHMS:
        if name in reductions:
            return reductions[name]
    raise UnsupportedError(
        f"MSCCL++ must offer one of {', '.join(_ALGORITHMS)}, got {', '.join(reductions) or 'no all-reduce'}."
    )
