"""Our own backends by name, the launches worth trying for each, and the words for a launch. No GPU, no torch."""

from __future__ import annotations

from dataclasses import MISSING, fields

from fastverify.comm.cuda.launch import Algorithm, Launch, candidate_launches

# The memory they work in and how.
OWN_BACKENDS = {
    "push": ("push", Algorithm.ONE_SHOT),
    "push_two_shot": ("push", Algorithm.TWO_SHOT),
    "islands": ("push", Algorithm.ISLANDS),
    "host": ("host", Algorithm.ONE_SHOT),
    "host_two_shot": ("host", Algorithm.TWO_SHOT),
}


def fabric_of(backend: str) -> str | None:
    """The memory that one of our own backends works in; None for a library's."""
    return OWN_BACKENDS[backend][0] if backend in OWN_BACKENDS else None


def list_launches(name: str, world_size: int, num_bytes: int, *, fused: bool) -> tuple[Launch, ...]:
    """What is worth trying for a backend of ours; nothing for any other."""
    if name not in OWN_BACKENDS:
        return ()
    fabric, algorithm = OWN_BACKENDS[name]
    launches = candidate_launches(fabric, world_size, num_bytes, fused=fused)
    return tuple(launch for launch in launches if launch.algorithm is algorithm)


def launch_text(launch: Launch) -> str:
    """`TWO_SHOT SENTINEL 64x256`, and what is not as usual."""
    words = [launch.algorithm.name, launch.protocol.name, f"{launch.blocks}x{launch.threads}"]
    for field in fields(launch):
        value = getattr(launch, field.name)
        if field.name == "algorithm" or field.default is MISSING or value == field.default:
            continue
        name = field.name.removeprefix("has_").removeprefix("is_").removesuffix("_ns")
        words.append(name if value is True else f"{name} {value}")
    return " ".join(words)
