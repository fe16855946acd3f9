"""What the start-up probe tries, and what the tables become where a protocol failed it. Plain arithmetic, no GPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fastverify.comm.cuda.launch import Algorithm, Launch, Protocol, Rule, trim
from fastverify.comm.cuda.probe import ProbeCase
from fastverify.comm.cuda.rank import Fabric
from fastverify.comm.cuda.workspace import Layout
from fastverify.errors import UnsupportedError

_KB = 1024
# Above a crossover by more than a line, and with an odd tail: the last line is not full.
_ABOVE_CROSSOVER_BYTES = 4 * _KB + 2
_OTHER_BYTES = 32 * _KB + 2
# What there are kernels for.
_FUSED_PROTOCOLS = (Protocol.LINES, Protocol.SENTINEL)
_GATHER_PROTOCOLS = (Protocol.LINES, Protocol.FLAGS)
# What replaces a protocol that failed, best first.
_PREFERENCE = (Protocol.SENTINEL, Protocol.FLAGS, Protocol.LINES)


def list_probe_cases(tables: Iterable[tuple[Rule, ...]], layout: Layout) -> tuple[ProbeCase, ...]:
    """One message in the range of each rule, and one for each protocol that no rule of a sum uses."""
    cases = [case for rules in tables for case in _rule_cases(rules, layout)]
    tried = {case.launch.protocol for case in cases}
    cases += [
        ProbeCase(
            Launch(protocol, 16, 256), min(_OTHER_BYTES, _even(layout.largest_message(Algorithm.ONE_SHOT, protocol)))
        )
        for protocol in Protocol
        if protocol not in tried
    ]
    return tuple(dict.fromkeys(cases))


def _rule_cases(rules: tuple[Rule, ...], layout: Layout) -> list[ProbeCase]:
    cases, lower = [], 0
    for rule in rules:
        num_bytes = min(lower + _ABOVE_CROSSOVER_BYTES, _even(layout.max_bytes))
        cases.append(ProbeCase(trim(rule.launch, num_bytes, layout.world_size), num_bytes))
        lower = rule.max_bytes
    return cases


def _even(limit: int) -> int:
    return limit // 2 * 2


def avoid_in_tables(
    fabric: Fabric, broken: frozenset[Protocol]
) -> tuple[tuple[Rule, ...], tuple[Rule, ...], tuple[Rule, ...]]:
    """The tables of sums, fused kernels and gathers, with another protocol wherever they had a broken one.

    Raises UnsupportedError where nothing is left.
    """
    return (
        _avoid_in_table(fabric.rules, broken, tuple(Protocol)),
        _avoid_in_table(fabric.fused_rules, broken, _FUSED_PROTOCOLS),
        _avoid_in_table(fabric.gather_rules, broken, _GATHER_PROTOCOLS),
    )


def _avoid_in_table(
    rules: tuple[Rule, ...], broken: frozenset[Protocol], allowed: tuple[Protocol, ...]
) -> tuple[Rule, ...]:
    return tuple(replace(rule, launch=_avoid(rule.launch, broken, allowed)) for rule in rules)


def _avoid(launch: Launch, broken: frozenset[Protocol], allowed: tuple[Protocol, ...]) -> Launch:
    if launch.protocol not in broken:
        return launch
    for protocol in _PREFERENCE:
        if protocol in allowed and protocol not in broken and _exists(launch.algorithm, protocol):
            return replace(launch, protocol=protocol)
    names = ", ".join(protocol.name.lower() for protocol in allowed)
    raise UnsupportedError(f"one of the protocols {names} must pass the start-up probe, none did.")


def _exists(algorithm: Algorithm, protocol: Protocol) -> bool:
    return not (algorithm is Algorithm.ISLANDS and protocol is Protocol.FLAGS)
