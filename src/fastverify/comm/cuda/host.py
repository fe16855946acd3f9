"""Inboxes and outboxes in pinned host memory, for GPUs that cannot reach each other.

Data crosses PCIe twice, and the CPU does nothing. Bytes over PCIe are what costs, and a poll is one too. Two ranks
write into inboxes: each reader polls memory on its own NUMA node. More ranks write lines and flags once, into an
outbox on the writer's own node, which every peer reads: the message crosses the writer's link once instead of n - 1
times. Either way the memory of rank r belongs on r's node. Sentinels keep inboxes, since their reader empties them.
The tables come from two H200, each on its own PCIe Gen5 x16 (benchmarks/results/all_reduce_gpu_h200x2_2026-11.json,
all_reduce_table_h200x2_2026-11.json); otherwise they are a guess until the chooser has measured.
"""

from __future__ import annotations

import torch

from fastverify.comm.cuda.launch import Algorithm, Launch, Protocol, Rule
from fastverify.comm.cuda.push import fill_inbox
from fastverify.comm.cuda.rank import Fabric
from fastverify.comm.cuda.workspace import Layout, default_max_bytes

_KB = 1024
_EVERYTHING = 1 << 40
_ONE_SHOT = (
    Rule(4 * _KB, Launch(Protocol.LINES, 64, 128)),
    Rule(128 * _KB, Launch(Protocol.SENTINEL, 64, 128, pause_ns=100)),
    Rule(192 * _KB, Launch(Protocol.SENTINEL, 64, 256, pause_ns=100)),
    Rule(320 * _KB, Launch(Protocol.SENTINEL, 32, 128, units=2)),
    Rule(_EVERYTHING, Launch(Protocol.FLAGS, 64, 512)),
)
_FUSED = (
    Rule(8 * _KB, Launch(Protocol.SENTINEL, 64, 256, cluster=8)),
    Rule(48 * _KB, Launch(Protocol.SENTINEL, 64, 256, cluster=2)),
    Rule(224 * _KB, Launch(Protocol.SENTINEL, 64, 256, cluster=4)),
    Rule(_EVERYTHING, Launch(Protocol.SENTINEL, 64, 256, cluster=2)),
)
# Arbitrary, here and below: not measured yet. With outboxes, lines and flags are written once for all readers.
_OUTBOXES = (
    Rule(16 * _KB, Launch(Protocol.LINES, 64, 64, pause_ns=100)),
    Rule(128 * _KB, Launch(Protocol.LINES, 64, 256, has_scouts=True)),
    Rule(_EVERYTHING, Launch(Protocol.FLAGS, 64, 256)),
)
_TWO_SHOT = (
    Rule(64 * _KB, Launch(Protocol.SENTINEL, 64, 128, pause_ns=100, algorithm=Algorithm.TWO_SHOT)),
    Rule(_EVERYTHING, Launch(Protocol.FLAGS, 32, 512, pause_ns=100, algorithm=Algorithm.TWO_SHOT)),
)
_GATHER = (
    Rule(16 * _KB, Launch(Protocol.LINES, 64, 128, pause_ns=100)),
    Rule(_EVERYTHING, Launch(Protocol.FLAGS, 32, 512, pause_ns=100)),
)


def host_layout(world_size: int, max_bytes: int | None = None) -> Layout:
    """Memory of one rank."""
    return Layout(
        world_size,
        max_bytes or default_max_bytes(world_size),
        has_outboxes=world_size > 2,
        max_sentinel_bytes=1024 * _KB,
    )


def host_fabric(algorithm: Algorithm = Algorithm.ONE_SHOT, world_size: int = 2) -> Fabric:
    """The launches to start from with one algorithm."""
    one_shot = _ONE_SHOT if world_size == 2 else _OUTBOXES
    return Fabric("host", _TWO_SHOT if algorithm is Algorithm.TWO_SHOT else one_shot, _FUSED, _GATHER)


def allocate_inbox(layout: Layout) -> torch.Tensor:
    """Memory of one rank, filled as the protocols expect it. Its address is the same on the CPU and the GPU."""
    inbox = torch.empty(layout.num_bytes, dtype=torch.uint8, pin_memory=True)
    fill_inbox(inbox, layout)
    return inbox
