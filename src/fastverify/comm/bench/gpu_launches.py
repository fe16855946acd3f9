"""Which launch a case of the GPU benchmark is about: the candidate that it numbers, or what the backend picks."""

from __future__ import annotations

from typing import Any

from fastverify.comm.bench.gpu_rows import CaseKey
from fastverify.comm.cuda.launch import Launch
from fastverify.comm.gpu.launches import OWN_BACKENDS, launch_text, list_launches


def find_candidate(key: CaseKey, world_size: int) -> Launch | None:
    """The launch that the case is about; None where the backend picks."""
    if key.candidate is None:
        return None
    return list_launches(key.backend, world_size, key.num_bytes, fused=key.fused)[key.candidate]


def picked_launch_text(backend: Any, key: CaseKey, num_rows: int, row_bytes: int) -> str | None:
    """The launch that one of our backends picks for a case; None for any other backend."""
    rank = getattr(backend, "rank", None)
    if key.backend not in OWN_BACKENDS or rank is None:
        return None
    if key.fused and not key.separate:
        return launch_text(rank.choose_fused_launch(num_rows, row_bytes))
    return launch_text(rank.choose_launch(key.num_bytes))
