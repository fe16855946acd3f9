"""How long our all-reduces should take, from a handful of facts about the links: no GPU, no torch, plain arithmetic.

A call is one launch, then one to three rounds. In each round a rank writes, the data flies, and the last byte must have
passed the narrowest place: the rank's own link, or what leads to the other switch or root complex. Through host memory
a rank also reads back what came, and that starts only when it has been written.
It does not know: ranks that come late, other traffic, cold caches, how well a launch is chosen.
Source of the terms: what was measured on one H200 and published elsewhere; docs/all-reduce.md judges them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fastverify.comm.cuda.launch import Protocol
from fastverify.errors import ConfigError

_BYTES_PER_US = 1e3  # of 1 GB/s
# Measured: prototype of 64 x 256 threads at 1 MB, eight batches (1 and 2 NVIDIA H200, 2026-11).
_WAIT_PER_EXTRA_BATCH = 0.5
# Measured: host sentinel, 57 to 115 KB, one H200: 87 us per MB; data alone would take 70, all traffic in turn 105.
_VISIBLE_CLEARING = 0.5


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


@dataclass(frozen=True)
class LinkFacts:
    """What the model needs to know of a machine. Bandwidths are of one GPU while all GPUs send, in 1e9 bytes/s.

    `launch_us`: an empty kernel in a graph. `work_us`: load, add and store of a small message. `flag_us`: from a store
    to the load that sees it. `host_fence_us`: what a flag costs above data that carries its own readiness.
    `island_size`: GPUs behind one switch or root complex, 0 for all. `cross_gb_per_s`: everything that one island sends
    to the others together.
    """

    launch_us: float = 0.65
    work_us: float = 0.45
    per_peer_us: float = 0.1
    handle_gb_per_s: float = 930.0
    norm_us: float = 1.2
    flag_us: float = 0.7
    peer_gb_per_s: float = 0.0
    island_size: int = 0
    cross_flag_us: float = 0.0
    cross_gb_per_s: float = 0.0
    host_flag_us: float = 0.0
    host_write_gb_per_s: float = 0.0
    host_read_gb_per_s: float = 0.0
    host_fence_us: float = 0.0
    host_total_gb_per_s: float = 0.0
    batch_bytes: int = 1 << 20


@dataclass(frozen=True)
class Round:
    """Traffic of one round as multiples of the message: per rank, and of one whole island to the others."""

    written: float
    read: float
    crossing: float = 0.0


def rounds_of(scheme: Scheme, world_size: int, island_size: int = 0) -> tuple[Round, ...]:
    """The rounds of one call. Raises ConfigError for a world size or islands that the scheme does not serve."""
    n, m = world_size, island_size or world_size
    if n < 2 or n % m:
        raise ConfigError(f"world size must be 2 or more and a multiple of the island size, got {n} and {m}.")
    share = (n - 1) / n
    match scheme:
        case Scheme.PUSH:
            return (Round(n - 1, n - 1, m * (n - m)),)
        case Scheme.PUSH_TWO_SHOT:
            return (Round(share, share, m * (n - m) / n),) * 2
        case Scheme.ISLANDS:
            if n != 2 * m:
                raise ConfigError(f"islands need two halves, got {n} ranks in islands of {m}.")
            inside = Round((m - 1) / m, (m - 1) / m)
            return (inside, Round(1 / m, 1 / m, 1.0), inside)
        case Scheme.HOST_INBOX:
            return (Round(n - 1, n - 1),)
        case Scheme.HOST_OUTBOX:
            return (Round(1, n - 1),)
        case Scheme.HOST_TWO_SHOT:
            return (Round(share, share),) * 2


def predict_latency_us(
    algorithm: Scheme, protocol: Protocol, world_size: int, num_bytes: int, link: LinkFacts
) -> float:
    """One call inside a CUDA graph, warm. Raises ConfigError where `link` lacks a fact that the algorithm needs."""
    _check(algorithm, protocol, link)
    rounds = rounds_of(algorithm, world_size, link.island_size)
    fixed_us = link.launch_us + len(rounds) * (link.work_us + link.per_peer_us * (world_size - 2))
    round_us = _host_round_us if algorithm.uses_host_memory else _peer_round_us
    return (
        fixed_us
        + sum(round_us(item, protocol, world_size, num_bytes, link) for item in rounds)
        + _bytes_us(num_bytes, link.handle_gb_per_s)
    )


def best_protocol(algorithm: Scheme, world_size: int, num_bytes: int, link: LinkFacts) -> tuple[Protocol, float]:
    """The fastest protocol that the algorithm has, and its prediction."""
    times = {p: predict_latency_us(algorithm, p, world_size, num_bytes, link) for p in protocols_of(algorithm)}
    protocol = min(times, key=lambda p: times[p])
    return protocol, times[protocol]


def protocols_of(algorithm: Scheme) -> tuple[Protocol, ...]:
    """An outbox has several readers, none of which may empty it."""
    if algorithm is Scheme.HOST_OUTBOX:
        return (Protocol.LINES, Protocol.FLAGS)
    return tuple(Protocol) if algorithm.uses_host_memory else (Protocol.LINES, Protocol.SENTINEL)


def predict_fused_us(
    algorithm: Scheme, world_size: int, num_rows: int, row_bytes: int, link: LinkFacts, rows_at_once: int = 16
) -> float:
    """Sum, residual and RMSNorm in one kernel: lines or sentinel, and a norm for every pass over rows."""
    data = (Protocol.LINES, Protocol.SENTINEL)
    sum_us = min(predict_latency_us(algorithm, p, world_size, num_rows * row_bytes, link) for p in data)
    extra_passes = -(-num_rows // rows_at_once) - 1
    flag_us = link.host_flag_us if algorithm.uses_host_memory else link.flag_us
    return sum_us + link.norm_us + extra_passes * _WAIT_PER_EXTRA_BATCH * (flag_us + link.norm_us)


def _peer_round_us(item: Round, protocol: Protocol, world_size: int, num_bytes: int, link: LinkFacts) -> float:
    wire_bytes = num_bytes * _line_factor(protocol)
    wire_us = _bytes_us(wire_bytes * item.written, link.peer_gb_per_s)
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


def _check(algorithm: Scheme, protocol: Protocol, link: LinkFacts) -> None:
    if protocol not in protocols_of(algorithm):
        raise ConfigError(f"{algorithm.value} has no protocol {protocol.name.lower()}.")
    if algorithm.uses_host_memory:
        names = ["host_flag_us", "host_write_gb_per_s", "host_read_gb_per_s", "host_total_gb_per_s"]
    else:
        names = ["flag_us", "peer_gb_per_s"] + (["cross_flag_us", "cross_gb_per_s"] if link.island_size else [])
    if missing := [name for name in names if getattr(link, name) <= 0]:
        raise ConfigError(f"a prediction of {algorithm.value} needs {', '.join(missing)}. Measure them: bench links.")


# ---- machines as known before anything but one GPU was measured ----

# Measured: prototypes of LINES over NVLink and on one GPU, the same launch, are 0.4 us apart (2x H200, 2026-11).
# 390 GB/s: published reads of H100 over NVLink, SGLang's kernel, 2 to 8 ranks at 1 MB: 308 to 407.
H200_NVLINK = LinkFacts(flag_us=1.1, peer_gb_per_s=390.0)
# Measured: slope and start of the host prototype with 2 H200, each on its own PCIe Gen5 x16, and of host FLAGS on one.
# 300 GB/s of all ranks together: an assumption.
H200_HOST = LinkFacts(
    host_flag_us=1.95,
    host_write_gb_per_s=57.0,
    host_read_gb_per_s=57.0,
    host_fence_us=2.9,
    host_total_gb_per_s=300.0,
)
# Published (rtx6kpro): flag 0.63 to 0.73 us behind one switch, 1.06 to 1.08 across root complexes.
# 35 and 29 GB/s: what its one-shot tables imply for 4 GPUs on one switch and 8 on two.
PCIE_GEN5_SWITCH = LinkFacts(flag_us=0.7, peer_gb_per_s=35.0)
PCIE_GEN5_TWO_SWITCHES = LinkFacts(
    flag_us=0.7, peer_gb_per_s=35.0, island_size=4, cross_flag_us=1.07, cross_gb_per_s=57.0
)
# Published (rtx6kpro collapse report): 2.7 GB/s of all flows together.
PCIE_GEN5_COLLAPSING = LinkFacts(flag_us=0.7, peer_gb_per_s=35.0, island_size=4, cross_flag_us=1.07, cross_gb_per_s=2.7)
