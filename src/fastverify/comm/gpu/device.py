"""What chooser and benchmark ask of a GPU: a stream, graphs, times, a cold cache. Tests bring devices of their own.

Everything runs on the one side stream of gpu/timing.py, since a backend may refuse a second stream and the default one
cannot be captured. `BenchDevice` adds what only the benchmark needs; its ranks beyond the number of GPUs share them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from fastverify.comm.gpu import timing
from fastverify.units import US_PER_MS

Call = Callable[[], object]


class GraphDevice(Protocol):
    """One rank's device."""

    device: torch.device

    def use(self) -> AbstractContextManager[Any]:
        """Makes the stream of all timing torch's current one."""
        ...

    def synchronize(self) -> None:
        """Wait for everything on the device."""
        ...

    def capture(self, call: Call, num_calls: int) -> Any:
        """A graph of dependent calls, to `replay()`."""
        ...

    def time_graph(self, graph: Any, num_calls: int, num_samples: int, prepare: Call, align: Call) -> list[float]:
        """Microseconds per call, one number per replay."""
        ...


class BenchDevice(GraphDevice, Protocol):
    """`shared` where other ranks use it too."""

    shared: bool

    def time_eager(self, call: Call, num_samples: int, prepare: Call, align: Call) -> list[float]:
        """Microseconds of single calls on an idle device."""
        ...

    def flush_l2(self) -> None:
        """Enqueue writing over the whole L2 cache."""
        ...

    def do_nothing(self) -> None:
        """Enqueue a kernel that ends at once."""
        ...


class CudaGraphs:
    """A GPU. All graphs share one pool of memory, whose owner is a graph that holds nobody's handles."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = timing.timing_stream(device)
        with torch.cuda.device(device), self.use():
            self._word = torch.zeros(1, device=device)
            self._pool_owner = timing.capture(self._word.zero_, 1)

    def use(self) -> AbstractContextManager[Any]:
        """See GraphDevice."""
        return torch.cuda.stream(self._stream)

    def synchronize(self) -> None:
        """See GraphDevice."""
        torch.cuda.synchronize(self.device)

    def capture(self, call: Call, num_calls: int) -> torch.cuda.CUDAGraph:
        """See GraphDevice."""
        return timing.capture(call, num_calls, like=self._pool_owner)

    def time_graph(
        self, graph: torch.cuda.CUDAGraph, num_calls: int, num_samples: int, prepare: Call, align: Call
    ) -> list[float]:
        """See GraphDevice."""
        return timing.time_replays(graph, num_calls, num_samples, prepare, align)


class CudaDevice(CudaGraphs):
    """The GPU of a rank of the benchmark, which becomes torch's current one."""

    def __init__(self, rank: int, world_size: int) -> None:
        num_gpus = torch.cuda.device_count()
        self.shared = world_size > num_gpus
        device = torch.device("cuda", rank % num_gpus)
        torch.cuda.set_device(device)
        super().__init__(device)
        self._flush_buffer: torch.Tensor | None = None

    def time_eager(self, call: Call, num_samples: int, prepare: Call, align: Call) -> list[float]:
        """What a server without graphs waits for: the host launches each call on an idle GPU.

        A call that is not timed brings the ranks together first; its end lets all hosts go on at nearly one time.
        """
        samples_us = []
        for _ in range(num_samples):
            prepare()
            align()
            call()
            self._stream.synchronize()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record(self._stream)
            call()
            end.record(self._stream)
            end.synchronize()
            samples_us.append(start.elapsed_time(end) * US_PER_MS)
        return samples_us

    def flush_l2(self) -> None:
        """Over a buffer twice as large as the cache; a flush reaches this GPU's cache only."""
        if self._flush_buffer is None:
            num_bytes = 2 * torch.cuda.get_device_properties(self.device).L2_cache_size
            self._flush_buffer = torch.zeros(num_bytes, dtype=torch.uint8, device=self.device)
        self._flush_buffer.fill_(1)

    def do_nothing(self) -> None:
        """See BenchDevice."""
        torch.cuda._sleep(0)  # type: ignore[no-untyped-call]
