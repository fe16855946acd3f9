"""What the benchmark asks of a GPU: a stream, graphs, times, a cold cache. Tests bring a device of their own.

`CudaDevice` is one rank's GPU; ranks beyond the number of GPUs share them. Everything runs on the one side stream of
gpu_timing.py, since a backend may refuse a second stream and the default one cannot be captured.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from fastverify.comm import gpu_timing
from fastverify.units import US_PER_MS

Call = Callable[[], object]


class BenchDevice(Protocol):
    """One rank's device; `shared` where other ranks use it too."""

    device: torch.device
    shared: bool

    def use(self) -> AbstractContextManager[Any]:
        """Makes the benchmark's stream torch's current one."""
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

    def time_eager(self, call: Call, num_samples: int, prepare: Call, align: Call) -> list[float]:
        """Microseconds of single calls on an idle device."""
        ...

    def flush_l2(self) -> None:
        """Enqueue writing over the whole L2 cache."""
        ...

    def do_nothing(self) -> None:
        """Enqueue a kernel that ends at once."""
        ...


class CudaDevice:
    """The GPU of a rank."""

    def __init__(self, rank: int, world_size: int) -> None:
        num_gpus = torch.cuda.device_count()
        self.shared = world_size > num_gpus
        self.device = torch.device("cuda", rank % num_gpus)
        torch.cuda.set_device(self.device)
        self._stream = gpu_timing.timing_stream(self.device)
        self._flush_buffer: torch.Tensor | None = None

    def use(self) -> AbstractContextManager[Any]:
        """See BenchDevice."""
        return torch.cuda.stream(self._stream)

    def synchronize(self) -> None:
        """See BenchDevice."""
        torch.cuda.synchronize(self.device)

    def capture(self, call: Call, num_calls: int) -> torch.cuda.CUDAGraph:
        """See BenchDevice."""
        return gpu_timing.capture(call, num_calls)

    def time_graph(
        self, graph: torch.cuda.CUDAGraph, num_calls: int, num_samples: int, prepare: Call, align: Call
    ) -> list[float]:
        """See BenchDevice."""
        return gpu_timing.time_replays(graph, num_calls, num_samples, prepare, align)

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
