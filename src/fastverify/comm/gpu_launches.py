"""The launches of our own kernels as the benchmark sees them: which ones to try, and the words for one."""

from __future__ import annotations

from typing import Any

from fastverify.comm.cuda.launch import Launch, candidate_launches
from fastverify.comm.gpu_bench_rows import CaseKey

# Names of backends -> memory their kernels write through.
FABRICS = {"push": "push", "push_two_shot": "push", "islands": "push", "host": "host", "host_two_shot": "host"}
_ALGORITHMS = {
    "push": "ONE_SHOT",
    "push_two_shot": "TWO_SHOT",
    "islands": "ISLANDS",
    "host": "ONE_SHOT",
    "host_two_shot": "TWO_SHOT",
}


def list_candidates(name: str, world_size: int, num_bytes: int, *, fused: bool) -> tuple[Launch, ...]:
    """What tuning tries for a backend of ours; nothing for any other."""
    if name not in FABRICS:
        return ()
    launches = candidate_launches(FABRICS[name], world_size, num_bytes, fused=fused)
    return tuple(launch for launch in launches if launch.algorithm.name == _ALGORITHMS[name])


def find_candidate(key: CaseKey, world_size: int) -> Launch | None:
    """The launch that the case is about; None where the backend picks."""
    if key.candidate is None:
        return None
    return list_candidates(key.backend, world_size, key.num_bytes, fused=key.fused)[key.candidate]


def launch_text(launch: Launch) -> str:
    """`TWO_SHOT SENTINEL 64x256`, and what is not as usual."""
    extras = [
        f"{name} {value}"
        for name, value, usual in (
            ("units", launch.units, 1),
            ("pause", launch.pause_ns, 0),
            ("cluster", launch.cluster, 1),
        )
        if value != usual
    ]
    words = [launch.algorithm.name, launch.protocol.name, f"{launch.blocks}x{launch.threads}", *extras]
    return " ".join(words)


def picked_launch_text(backend: Any, key: CaseKey, num_rows: int, row_bytes: int) -> str | None:
    """The launch that one of our backends picks for a case; None for any other backend."""
    rank = getattr(backend, "rank", None)
    if key.backend not in FABRICS or rank is None:
        return None
    if key.fused and not key.separate:
        return launch_text(rank.choose_fused_launch(num_rows, row_bytes))
    return launch_text(rank.choose_launch(key.num_bytes))
