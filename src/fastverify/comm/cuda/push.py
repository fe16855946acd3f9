"""Inboxes in GPU memory: a rank writes straight into the memory that its peer polls.

Regime: ranks that reach each other's memory, on one GPU or over NVLink or PCIe. The tables come from two H200 over
NVLink (benchmarks/results/all_reduce_gpu_h200x2_2026-11.json, all_reduce_table_h200x2_2026-11.json). Among equals they
name what two ranks on one GPU can use uncut (all_reduce_gpu_virtual_h200_2026-11.json: 128 blocks cut to 65 take a
third longer). For more ranks they are a guess until the chooser has measured.
"""

from __future__ import annotations

import torch

from fastverify.comm.cuda.launch import Algorithm, Launch, Protocol, Rule
from fastverify.comm.cuda.rank import Fabric
from fastverify.comm.cuda.workspace import Layout, default_max_bytes

_KB = 1024
_EVERYTHING = 1 << 40
_TWO_RANKS = (
    Rule(16 * _KB, Launch(Protocol.LINES, 16, 256)),
    Rule(128 * _KB, Launch(Protocol.SENTINEL, 64, 128)),
    Rule(256 * _KB, Launch(Protocol.SENTINEL, 64, 256)),
    Rule(512 * _KB, Launch(Protocol.SENTINEL, 64, 512)),
    Rule(_EVERYTHING, Launch(Protocol.SENTINEL, 256, 512)),
)
# A row in one block needs no total between blocks, and more rows then run at a time.
_FUSED = (
    Rule(32 * _KB, Launch(Protocol.LINES, 128, 256, cluster=8), row_bytes=8192),
    Rule(2048 * _KB, Launch(Protocol.SENTINEL, 128, 256), row_bytes=8192),
    Rule(_EVERYTHING, Launch(Protocol.SENTINEL, 384, 256, cluster=2), row_bytes=8192),
    Rule(64 * _KB, Launch(Protocol.LINES, 128, 256, cluster=8), row_bytes=14_336),
    Rule(256 * _KB, Launch(Protocol.SENTINEL, 128, 256, cluster=4), row_bytes=14_336),
    Rule(_EVERYTHING, Launch(Protocol.SENTINEL, 128, 256), row_bytes=14_336),
    # Not measured: wide rows, which one block might not hold.
    Rule(64 * _KB, Launch(Protocol.LINES, 128, 256, cluster=8), row_bytes=32_768),
    Rule(_EVERYTHING, Launch(Protocol.SENTINEL, 128, 256, cluster=4), row_bytes=32_768),
)
# Sentinels would change bits that are no numbers.
_GATHER = (Rule(128 * _KB, Launch(Protocol.LINES, 32, 256)), Rule(_EVERYTHING, Launch(Protocol.FLAGS, 64, 512)))


def push_layout(world_size: int, max_bytes: int | None = None) -> Layout:
    """Memory of one rank; flags only serve gathers here."""
    return Layout(world_size, max_bytes or default_max_bytes(world_size), max_flag_bytes=512 * _KB)


def push_fabric(algorithm: Algorithm = Algorithm.ONE_SHOT) -> Fabric:
    """The launches to start from with one algorithm."""
    return Fabric("push", _sum_rules(algorithm), _FUSED, _GATHER)


def _sum_rules(algorithm: Algorithm) -> tuple[Rule, ...]:
    if algorithm is Algorithm.ONE_SHOT:
        return _TWO_RANKS
    # Arbitrary: not measured yet; each rank sums a part, so fewer blocks have work than with one-shot.
    return (
        Rule(16 * _KB, Launch(Protocol.LINES, 32, 128, algorithm=algorithm)),
        Rule(512 * _KB, Launch(Protocol.SENTINEL, 64, 256, algorithm=algorithm)),
        Rule(_EVERYTHING, Launch(Protocol.SENTINEL, 128, 512, algorithm=algorithm)),
    )


def allocate_inbox(layout: Layout, device: torch.device) -> torch.Tensor:
    """Memory of one rank, filled as the protocols expect it."""
    inbox = torch.empty(layout.num_bytes, dtype=torch.uint8, device=device)
    fill_inbox(inbox, layout)
    return inbox


def fill_inbox(inbox: torch.Tensor, layout: Layout) -> None:
    """What an inbox must hold before the first call."""
    for region in layout.regions.values():
        inbox[region.offset : region.offset + region.num_bytes] = region.fill
