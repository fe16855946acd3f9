"""vLLM's custom all-reduce behind the contract: its CustomAllreduce class with the buffer that it registers itself.

Each call copies the input into that buffer and sums the ranks' buffers with one kernel, in float32; all ranks get the
same bits. vLLM's own way into CUDA graphs registers every captured address with all ranks when its `capture()` block
ends, and a graph replayed before that reads through pointers that are not there yet. Here every captured call uses the
one registered buffer, and the table of pointers that the kernel reads is filled with that buffer's entry beforehand, so
that calls may be captured anywhere.
Written against vLLM 0.24 and 0.33 (custom_all_reduce.py, csrc/custom_all_reduce.cuh). scripts/check_peers.py runs it
where vLLM is installed; tests hold the adapter against a fake of its class.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from fastverify.comm.backend import AllReduceBackend, Support
from fastverify.comm.group import Group
from fastverify.comm.peers.library_env import variables_set
from fastverify.comm.peers.peer_backend import FLOATS, Limits, OutOfPlacePeer
from fastverify.comm.peers.peer_gpus import check_native_atomics, check_own_gpus, check_peer_access, first_refusal
from fastverify.comm.peers.torch_groups import check_default_group, open_torch_group
from fastverify.errors import EnvironmentMissingError, UnsupportedError
from fastverify.units import BYTES_PER_MB

MAX_BYTES = 8 * BYTES_PER_MB
_WORLD_SIZES = (2, 4, 6, 8)
_MULTIPLE = 16
# RankData in vLLM's csrc/custom_all_reduce.cuh: eight pointers, whatever the world size.
_POINTERS = 8
# vLLM's own check of peer access needs vLLM's world group; find_support has asked the driver.
_TRUST_DRIVER = {"VLLM_SKIP_P2P_CHECK": "1"}


def find_support(group: Group, name: str = "vllm") -> Support:
    """Whether this rank could run it."""
    support = check_own_gpus(group, "vLLM's custom all-reduce")
    if not support.ok:
        return support
    if find_spec("vllm") is None:
        return Support(ok=False, reason="the package vllm is not installed")
    if group.world_size not in _WORLD_SIZES:
        return Support(ok=False, reason=f"vLLM's custom all-reduce takes 2, 4, 6 or 8 ranks, got {group.world_size}")
    library = "vLLM's custom all-reduce"
    links = check_peer_access(group, library)
    if group.world_size > 2 and links.ok and not check_native_atomics(group, library).ok:
        links = Support(ok=False, reason="vLLM's custom all-reduce needs NVLink between all GPUs from 3 ranks on")
    return first_refusal(links, check_default_group(group, library))


def create(group: Group, name: str = "vllm") -> AllReduceBackend:
    """Map the ranks' buffers into each other. Raises EnvironmentMissingError where it cannot run."""
    support = find_support(group, name)
    if not support.ok:
        raise EnvironmentMissingError(f"the {name} backend cannot run: {support.reason}.")
    return VllmBackend(group)


class VllmBackend(OutOfPlacePeer):
    """One CustomAllreduce."""

    name = "vllm"
    limits = Limits("vLLM's custom all-reduce", FLOATS, MAX_BYTES - _MULTIPLE, multiple=_MULTIPLE)

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        try:
            library = import_module("vllm.distributed.device_communicators.custom_all_reduce")
        except (ImportError, OSError) as error:
            raise EnvironmentMissingError(f"vLLM is installed but cannot be imported: {error}.") from error
        with torch.cuda.device(self._device), variables_set(_TRUST_DRIVER):
            self._library: Any = library.CustomAllreduce(
                group=open_torch_group(group, "vLLM"), device=self._device, max_size=MAX_BYTES
            )
            # From 0.33 on the buffers are allocated here.
            getattr(self._library, "finalize_p2p", lambda: None)()
        if self._library.disabled:
            raise EnvironmentMissingError("vLLM turned its custom all-reduce off; its log says why.")
        self._num_captured = 0
        self._max_captured = fill_pointer_table(self._library.rank_data, self._library.buffer_ptrs, group.world_size)
        torch.cuda.synchronize(self._device)

    def _sum(self, x: torch.Tensor, out: torch.Tensor) -> None:
        if torch.cuda.is_current_stream_capturing():
            if self._num_captured >= self._max_captured:
                raise UnsupportedError(
                    f"vLLM's custom all-reduce can be captured {self._max_captured} times, this is one more. "
                    f"Create a new backend on every rank."
                )
            self._num_captured += 1
        # The kernel reads the buffers only, so that `out` may be `x`.
        self._library.all_reduce(x, out=out, registered=False)

    def _free(self) -> None:
        torch.cuda.synchronize(self._device)
        self._library.close()


def fill_pointer_table(rank_data: torch.Tensor, buffers: list[int], world_size: int) -> int:
    """Copy the entry of the registered buffer into every slot after it; returns how many slots that are.

    A captured call reads the next free slot, which vLLM would fill when its capture block ends.
    Raises: UnsupportedError where the first slot is not the registered buffer's: the layout is another one then.
    """
    table = rank_data.view(torch.int64).view(-1, _POINTERS)
    found = table[0, :world_size].tolist()
    if found != list(buffers):
        raise UnsupportedError(
            f"vLLM's table of pointers starts with {found} instead of its buffer's {list(buffers)}: this version lays "
            f"it out differently. Use vLLM 0.24 or 0.33."
        )
    table[1:] = table[0]
    return len(table) - 1
