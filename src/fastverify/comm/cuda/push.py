"""Inboxes in GPU memory: a rank writes straight into the memory that its peer polls.

Regime: ranks that reach each other's memory. Run so far with the ranks of one process on one GPU only; memory of other
processes (cudaIpc) and of a second GPU is not mapped here yet.
"""

from __future__ import annotations

import torch

from fastverify.comm.cuda.launch import Launch, Protocol, Rule
from fastverify.comm.cuda.rank import Fabric
from fastverify.comm.cuda.workspace import Layout

_KB = 1024
# Measured: benchmarks/results/all_reduce_gpu_tune_h200_2026-11.json, NVIDIA H200, 2026-11.
PUSH = Fabric(
    "push",
    rules=(
        Rule(8 * _KB, Launch(Protocol.LINES, 16, 256)),
        Rule(256 * _KB, Launch(Protocol.SENTINEL, 64, 256)),
        Rule(512 * _KB, Launch(Protocol.SENTINEL, 64, 512)),
        Rule(1024 * _KB, Launch(Protocol.SENTINEL, 64, 512, units=2)),
    ),
    fused_rules=(Rule(1024 * _KB, Launch(Protocol.SENTINEL, 64, 256, cluster=4)),),
)


def allocate_inbox(layout: Layout, device: torch.device) -> torch.Tensor:
    """Memory of one rank, filled as the protocols expect it."""
    inbox = torch.empty(layout.num_bytes, dtype=torch.uint8, device=device)
    fill_inbox(inbox, layout)
    return inbox


def fill_inbox(inbox: torch.Tensor, layout: Layout) -> None:
    """What an inbox must hold before the first call."""
    for protocol in Protocol:
        region = layout.region(protocol)
        inbox[region.offset : region.offset + region.num_bytes] = region.fill
