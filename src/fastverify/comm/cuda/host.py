"""Inboxes in pinned host memory, for GPUs that cannot reach each other: data crosses PCIe twice, the CPU does nothing.

Bytes over PCIe are what costs, and a poll is one too: messages up to 128 KB carry their own readiness, larger ones
raise one flag per chunk. Run so far with the ranks of one process, which share one PCIe link; placement on the reader's
NUMA node and one mapping shared by several processes are not built.
"""

from __future__ import annotations

import torch

from fastverify.comm.cuda.launch import Launch, Protocol, Rule
from fastverify.comm.cuda.push import fill_inbox
from fastverify.comm.cuda.rank import Fabric
from fastverify.comm.cuda.workspace import Layout

_KB = 1024
# Measured: benchmarks/results/all_reduce_gpu_tune_h200_2026-11.json, NVIDIA H200, 2026-11.
HOST = Fabric(
    "host",
    rules=(
        Rule(64 * _KB, Launch(Protocol.SENTINEL, 64, 128, pause_ns=100)),
        Rule(128 * _KB, Launch(Protocol.SENTINEL, 32, 128, units=2)),
        Rule(512 * _KB, Launch(Protocol.FLAGS, 32, 512, units=2, pause_ns=100)),
        Rule(1024 * _KB, Launch(Protocol.FLAGS, 64, 256)),
    ),
    fused_rules=(
        Rule(64 * _KB, Launch(Protocol.SENTINEL, 64, 256, pause_ns=200, cluster=4)),
        Rule(1024 * _KB, Launch(Protocol.SENTINEL, 64, 256, pause_ns=200, cluster=8)),
    ),
)


def allocate_inbox(layout: Layout) -> torch.Tensor:
    """Memory of one rank, filled as the protocols expect it. Its address is the same on the CPU and the GPU."""
    inbox = torch.empty(layout.num_bytes, dtype=torch.uint8, pin_memory=True)
    fill_inbox(inbox, layout)
    return inbox
