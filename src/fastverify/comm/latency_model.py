"""How long our all-reduces should take, from a handful of facts about the links: no GPU, no torch, plain arithmetic.

A call is one launch, then one to three rounds. In each round a rank writes, the data flies, and the last byte must have
passed the narrowest place: the rank's own link, or what leads to the other switch or root complex. Through host memory
a rank also reads back what came, and that starts only when it has been written.
It does not know: ranks that come late, other traffic, cold caches, how well a launch is chosen.
Source of the terms: what was measured on two H200 and published elsewhere; docs/all-reduce-predictions.md judges them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from fastverify.comm.cuda.launch import Algorithm, Protocol
from fastverify.comm.link_facts import LinkFacts
from fastverify.errors import ConfigError

_BYTES_PER_US = 1e3  # of 1 GB/s
# Measured: prototype of 64 x 256 threads at 1 MB, eight batches (1 and 2 NVIDIA H200, 2026-11).
_WAIT_PER_EXTRA_BATCH = 0.5
# Measured: all_reduce_gpu_h200x2_2026-11.json and tune_host, host memory: sentinels up to 224 KB show next to nothing
# of it, at 512 KB they take what flags do. Mostly hidden, since PCIe carries both ways at once.
_VISIBLE_CLEARING = 0.2
# Islands exchange float32; messages are taken to have two bytes per element.
_PARTIAL_SUM_FACTOR = 2.0


class Scheme(StrEnum):
    """Who writes what where. The values are names of backends, but for the two ways of `host`."""

    PUSH = "push"
    PUSH_TWO_SHOT = "push_two_shot"
    ISLANDS = "islands"
    HOST_INBOX = "host_inbox"
    HOST_OUTBOX = "host_outbox"
    HOST_TWO_SHOT = "host_two_shot"

    @property
    def uses_host_memory(self) -> bool:
        """Whether data crosses PCIe twice."""
        return self.value.startswith("host")


def scheme_of(fabric: str, algorithm: Algorithm, protocol: Protocol, world_size: int) -> Scheme:
    """What a launch of comm/cuda does. Raises ConfigError for a launch that does not exist."""
    if fabric == "push":
        return (Scheme.PUSH, Scheme.PUSH_TWO_SHOT, Scheme.ISLANDS)[algorithm]
    if fabric != "host" or algorithm is Algorithm.ISLANDS:
        raise ConfigError(
            f"there is push, push two-shot, islands, host and host two-shot, got {fabric}, {algorithm.name}."
        )
    if algorithm is Algorithm.TWO_SHOT:
        return Scheme.HOST_TWO_SHOT
    return Scheme.HOST_INBOX if protocol is Protocol.SENTINEL or world_size == 2 else Scheme.HOST_OUTBOX


@dataclass(frozen=True)
class Round:
    """Traffic of one round as multiples of the message: per rank, and of one whole island to the others."""

    written: float
    read: float
    crossing: float = 0.0


def rounds_of(scheme: Scheme, protocol: Protocol, world_size: int, island_size: int = 0) -> tuple[Round, ...]:
    """The rounds of one call. Raises ConfigError for a world size or islands that the scheme does not serve."""
    n, m = world_size, min(island_size or world_size, world_size)
    if n < 2 or n % m:
        raise ConfigError(f"world size must be 2 or more and a multiple of the island size, got {n} and {m}.")
    part = Round((n - 1) / n, (n - 1) / n, m * (n - m) / n)
    match scheme:
        case Scheme.PUSH:
            return (Round(n - 1, n - 1, m * (n - m)),)
        case Scheme.PUSH_TWO_SHOT:
            return (part, part)
        case Scheme.ISLANDS:
            return _island_rounds(n, m)
        case Scheme.HOST_INBOX:
            return (Round(n - 1, n - 1),)
        case Scheme.HOST_OUTBOX:
            return (Round(1, n - 1),)
        case Scheme.HOST_TWO_SHOT:
            # Sums that no reader has to empty are written once for all.
            gather = part if protocol is Protocol.SENTINEL else Round(1 / n, (n - 1) / n)
            return (part, gather)


def _island_rounds(n: int, m: int) -> tuple[Round, ...]:
    if n != 2 * m:
        raise ConfigError(f"islands need two halves, got {n} ranks in islands of {m}.")
    inside = Round((m - 1) / m, (m - 1) / m)
    return (inside, Round(_PARTIAL_SUM_FACTOR / m, _PARTIAL_SUM_FACTOR / m, _PARTIAL_SUM_FACTOR), inside)


def predict_latency_us(
    algorithm: Scheme, protocol: Protocol, world_size: int, num_bytes: int, link: LinkFacts
) -> float:
    """One call inside a CUDA graph, warm. Raises ConfigError where `link` lacks a fact that the algorithm needs."""
    _check(algorithm, protocol, world_size, link)
    rounds = rounds_of(algorithm, protocol, world_size, link.island_size)
    fixed_us = link.launch_us + len(rounds) * (link.work_us + link.per_peer_us * (world_size - 2))
    if algorithm.uses_host_memory:
        return fixed_us + sum(_host_round_us(item, protocol, world_size, num_bytes, link) for item in rounds)
    return fixed_us + link.push_start_us + sum(_peer_round_us(item, protocol, num_bytes, link) for item in rounds)


def best_protocol(algorithm: Scheme, world_size: int, num_bytes: int, link: LinkFacts) -> tuple[Protocol, float]:
    """The fastest protocol that the algorithm has, and its prediction."""
    protocols = protocols_of(algorithm, world_size)
    times = {p: predict_latency_us(algorithm, p, world_size, num_bytes, link) for p in protocols}
    protocol = min(times, key=lambda p: times[p])
    return protocol, times[protocol]


def protocols_of(algorithm: Scheme, world_size: int) -> tuple[Protocol, ...]:
    """Sentinels need a reader that empties them, so an outbox, which has several readers, cannot hold them."""
    if algorithm is Scheme.HOST_OUTBOX:
        return (Protocol.LINES, Protocol.FLAGS)
    if algorithm is Scheme.HOST_INBOX and world_size > 2:
        return (Protocol.SENTINEL,)
    return tuple(Protocol) if algorithm.uses_host_memory else (Protocol.LINES, Protocol.SENTINEL)


@dataclass(frozen=True)
class Prediction:
    """What one call should take, by the faster protocol."""

    scheme: Scheme
    protocol: Protocol
    world_size: int
    num_bytes: int
    us: float


def predict_all(world_size: int, sizes: Sequence[int], link: LinkFacts) -> list[Prediction]:
    """Every scheme that `link` has the facts for, by size; schemes that a world size does not allow are left out."""
    found = []
    for num_bytes in sizes:
        for scheme in Scheme:
            try:
                protocol, us = best_protocol(scheme, world_size, num_bytes, link)
            except ConfigError:
                continue
            found.append(Prediction(scheme, protocol, world_size, num_bytes, us))
    return found


def predict_fused_us(
    algorithm: Scheme, world_size: int, num_rows: int, row_bytes: int, link: LinkFacts, rows_at_once: int = 64
) -> float:
    """Sum, residual and RMSNorm in one kernel: lines or sentinel, and a norm for every pass over rows."""
    data = [p for p in protocols_of(algorithm, world_size) if p is not Protocol.FLAGS]
    sum_us = min(predict_latency_us(algorithm, p, world_size, num_rows * row_bytes, link) for p in data)
    extra_passes = -(-num_rows // rows_at_once) - 1
    flag_us = link.host_flag_us if algorithm.uses_host_memory else link.flag_us
    return sum_us + link.norm_us + extra_passes * _WAIT_PER_EXTRA_BATCH * (flag_us + link.norm_us)


def _peer_round_us(item: Round, protocol: Protocol, num_bytes: int, link: LinkFacts) -> float:
    wire_bytes = num_bytes * _line_factor(protocol)
    wire_us = _bytes_us(wire_bytes * item.written, link.peer_gb_per_s)
    # What has come is summed while the rest is on its way: it counts only where no link is slower.
    wire_us = max(wire_us, _bytes_us(num_bytes * item.read, link.handle_gb_per_s))
    flag_us = link.flag_us
    if item.crossing:
        wire_us = max(wire_us, _bytes_us(wire_bytes * item.crossing, link.cross_gb_per_s))
        flag_us = link.cross_flag_us
    extra_batches = max(0, -(-num_bytes // link.batch_bytes) - 1)
    return flag_us * (1 + _WAIT_PER_EXTRA_BATCH * extra_batches) + wire_us


def _host_round_us(item: Round, protocol: Protocol, world_size: int, num_bytes: int, link: LinkFacts) -> float:
    wire_bytes = num_bytes * _line_factor(protocol)
    cleared = item.read if protocol is Protocol.SENTINEL else 0.0
    own_us = (
        _bytes_us(wire_bytes * item.written, link.host_write_gb_per_s)
        + _bytes_us(wire_bytes * item.read, link.host_read_gb_per_s)
        + _VISIBLE_CLEARING * _bytes_us(wire_bytes * cleared, link.host_write_gb_per_s)
    )
    everything = world_size * wire_bytes * (item.written + item.read + cleared)
    fence_us = link.host_fence_us if protocol is Protocol.FLAGS else 0.0
    return link.host_flag_us + fence_us + max(own_us, _bytes_us(everything, link.host_total_gb_per_s))


def _line_factor(protocol: Protocol) -> int:
    return 2 if protocol is Protocol.LINES else 1


def _bytes_us(num_bytes: float, gb_per_s: float) -> float:
    return num_bytes / (gb_per_s * _BYTES_PER_US)


def _check(algorithm: Scheme, protocol: Protocol, world_size: int, link: LinkFacts) -> None:
    if protocol not in protocols_of(algorithm, world_size):
        raise ConfigError(f"{algorithm.value} of {world_size} ranks has no protocol {protocol.name.lower()}.")
    if algorithm.uses_host_memory:
        names = ["host_flag_us", "host_write_gb_per_s", "host_read_gb_per_s", "host_total_gb_per_s"]
    else:
        names = ["flag_us", "peer_gb_per_s"] + (["cross_flag_us", "cross_gb_per_s"] if link.island_size else [])
    if missing := [name for name in names if getattr(link, name) <= 0]:
        raise ConfigError(f"a prediction of {algorithm.value} needs {', '.join(missing)}. Measure them: bench links.")
