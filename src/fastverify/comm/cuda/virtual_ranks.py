"""Several ranks in one process on one GPU: one stream each, their kernels resident together and waiting for each other.

With it the kernels are proved and tuned without a second GPU. It does not show what a link between GPUs costs.
Set CUDA_DEVICE_MAX_CONNECTIONS=32 before CUDA starts: streams that share a connection run one after the other, so a
rank could wait for one that is queued behind it. The same holds for a kernel that is loaded while a rank waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Self

import torch

from fastverify.comm.cuda import host, push
from fastverify.comm.cuda.kernels import KernelSet, kernel_set
from fastverify.comm.cuda.launch import Launch, cap_blocks, check_fits
from fastverify.comm.cuda.rank import CudaRank, Fabric
from fastverify.comm.cuda.workspace import Layout

FabricName = Literal["push", "host"]
# Arbitrary: about two seconds on present GPUs, far above any call and far below a watchdog.
SPIN_BOUND_CYCLES = 4_000_000_000


class VirtualRanks:
    """`ranks[i]` launches on `ranks[i].stream`; `run` starts the same work on every one of them."""

    def __init__(
        self,
        world_size: int,
        fabric: FabricName = "push",
        *,
        max_bytes: int = 1 << 20,
        layout: Layout | None = None,
        spin_bound_cycles: int = SPIN_BOUND_CYCLES,
        overlap: bool = True,
        device: str = "cuda:0",
        kernels: KernelSet | None = None,
    ) -> None:
        self.device = torch.device(device)
        torch.cuda.set_device(self.device)
        self.layout = layout or (push.push_layout if fabric == "push" else host.host_layout)(world_size, max_bytes)
        self.kernels = kernels or kernel_set(self.device, world_size)
        self._inboxes = [
            push.allocate_inbox(self.layout, self.device) if fabric == "push" else host.allocate_inbox(self.layout)
            for _ in range(world_size)
        ]
        addresses = [inbox.data_ptr() for inbox in self._inboxes]
        self._capture_stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self.fabric = self._fit(push.push_fabric() if fabric == "push" else host.host_fabric(world_size=world_size))
        self.ranks = [
            CudaRank(
                rank,
                addresses,
                self.layout,
                self.kernels,
                self.fabric,
                torch.cuda.Stream(self.device),  # type: ignore[no-untyped-call]
                spin_bound_cycles,
                overlap=overlap,
            )
            for rank in range(world_size)
        ]
        torch.cuda.synchronize(self.device)

    def _fit(self, fabric: Fabric) -> Fabric:
        """The tables are for a GPU per rank. One block per multiprocessor has room, whatever its size (check_fits)."""
        num_multiprocessors = torch.cuda.get_device_properties(self.device).multi_processor_count
        max_blocks = (num_multiprocessors - 1) // (2 * (self.layout.world_size - 1))
        return Fabric(
            fabric.name,
            cap_blocks(fabric.rules, max_blocks),
            cap_blocks(fabric.fused_rules, max_blocks),
            cap_blocks(fabric.gather_rules, max_blocks),
        )

    def check_fits(self, launch: Launch, dtype: torch.dtype = torch.bfloat16, *, fused: bool = False) -> None:
        """Raises ConfigError where the ranks' kernels might wait for each other for ever, for want of room."""
        find = self.kernels.fused if fused else self.kernels.all_reduce
        kernel = find(dtype, launch, outbox=self.layout.uses_outbox(launch.protocol))
        check_fits(
            launch,
            len(self.ranks),
            torch.cuda.get_device_properties(self.device).multi_processor_count,
            kernel.blocks_per_multiprocessor(launch.threads),
        )

    def run(self, work: Callable[[CudaRank], object]) -> None:
        """`work(rank)` on every rank's stream, after what the current stream holds and before what it gets next."""
        current = torch.cuda.current_stream(self.device)
        for rank in self.ranks:
            rank.stream.wait_stream(current)
        for rank in self.ranks:
            with torch.cuda.stream(rank.stream):
                work(rank)
        for rank in self.ranks:
            current.wait_stream(rank.stream)

    def capture(self, work: Callable[[CudaRank], object]) -> torch.cuda.CUDAGraph:
        """A graph in which every rank's `work` is a branch of its own. The kernels it needs must have run once."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        with torch.cuda.stream(self._capture_stream):
            graph.capture_begin(capture_error_mode="thread_local")
            self.run(work)
            graph.capture_end()
        return graph

    def check(self) -> None:
        """Wait for all ranks. Raises CommTimeoutError where a kernel gave up waiting."""
        for rank in self.ranks:
            rank.check()

    def close(self) -> None:
        """Free the inboxes. No kernel may be under way; calling twice is harmless."""
        torch.cuda.synchronize(self.device)
        self._inboxes.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
