"""Asks Linux to put pages of a mapping on one NUMA node, through the system call, since libc has no function for it.

Containers often forbid it (Docker's seccomp profile without CAP_SYS_NICE); then the pages lie where they are first
touched, which costs time and changes nothing else. Callers show what happened.
Source: mbind(2), set_mempolicy(2).
"""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path

from fastverify.comm.cuda.devices import UNKNOWN_NODE

# Source: Linux, asm/unistd.h of each architecture.
_MBIND_NUMBERS = {"x86_64": 237, "aarch64": 235}
# Prefers the node, and takes another where it is full. Source: Linux, linux/mempolicy.h.
_MPOL_PREFERRED = 1
_MASK_BITS = 1024


def place(address: int, num_bytes: int, node: int) -> str:
    """Put pages not yet touched on `node`; returns where they go in a few words, never raises."""
    if num_nodes() < 2:
        return "on the only NUMA node"
    if node == UNKNOWN_NODE:
        return "where they are first touched (the GPU's NUMA node is not known)"
    number = _MBIND_NUMBERS.get(platform.machine())
    if number is None:
        return f"where they are first touched (no mbind for {platform.machine()})"
    code = _mbind(number, address, num_bytes, node)
    if code:
        return f"where they are first touched (mbind to node {node}: {os.strerror(code)})"
    return f"on NUMA node {node}"


def num_nodes(root: Path = Path("/sys/devices/system/node")) -> int:
    """NUMA nodes of this machine."""
    return max(1, len(list(root.glob("node[0-9]*"))))


def _mbind(number: int, address: int, num_bytes: int, node: int) -> int:
    """0, or the error number."""
    words = (ctypes.c_ulong * (_MASK_BITS // 64))()
    words[node // 64] = 1 << (node % 64)
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    result = syscall(
        ctypes.c_long(number),
        ctypes.c_void_p(address),
        ctypes.c_ulong(num_bytes),
        ctypes.c_int(_MPOL_PREFERRED),
        words,
        ctypes.c_ulong(_MASK_BITS),
        ctypes.c_uint(0),
    )
    return ctypes.get_errno() if result else 0
