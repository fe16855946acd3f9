"""Which messages the probe sends, and what the tables become without a protocol."""

import pytest

from fastverify.comm.cuda.host import host_fabric, host_layout
from fastverify.comm.cuda.launch import Algorithm, Launch, Protocol, Rule, find_rule
from fastverify.comm.cuda.probe_cases import avoid_in_tables, list_probe_cases
from fastverify.comm.cuda.push import push_fabric, push_layout
from fastverify.comm.cuda.rank import Fabric
from fastverify.errors import UnsupportedError

KB = 1024


def push_tables(world_size: int) -> list[tuple[Rule, ...]]:
    return [push_fabric(algorithm).rules for algorithm in push_layout(world_size).algorithms(Protocol.LINES)]


@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
def test_every_rule_and_every_protocol_is_tried_with_an_odd_tail(world_size: int) -> None:
    tables = push_tables(world_size)
    cases = list_probe_cases(tables, push_layout(world_size))
    for rules in tables:
        for rule in rules:
            assert any(same_kernel(case.launch, rule.launch) for case in cases), rule
        sizes = [case.num_bytes for case in cases if case.launch.algorithm is rules[0].launch.algorithm]
        launches = {find_rule(rules, num_bytes) for num_bytes in sizes}
        assert launches == {rule.launch for rule in rules}
    assert {case.launch.protocol for case in cases} == set(Protocol)
    assert all(case.num_bytes % 16 and case.num_bytes % 2 == 0 for case in cases)
    assert len(set(cases)) == len(cases) < 20


def same_kernel(one: Launch, other: Launch) -> bool:
    return (one.algorithm, one.protocol, one.units) == (other.algorithm, other.protocol, other.units)


def test_cases_do_not_depend_on_a_gpu() -> None:
    cases = list_probe_cases([host_fabric().rules], host_layout(2))
    assert [case.num_bytes for case in cases][:2] == [4 * KB + 2, 8 * KB + 2]


@pytest.mark.parametrize("fabric", [push_fabric(), host_fabric(), push_fabric(Algorithm.ISLANDS)])
@pytest.mark.parametrize("broken", list(Protocol))
def test_no_table_keeps_a_broken_protocol(fabric: Fabric, broken: Protocol) -> None:
    tables = avoid_in_tables(fabric, frozenset({broken}))
    for before, after in zip((fabric.rules, fabric.fused_rules, fabric.gather_rules), tables, strict=True):
        assert [rule.max_bytes for rule in after] == [rule.max_bytes for rule in before]
        for old, new in zip(before, after, strict=True):
            assert new.launch.protocol is not broken
            assert new.launch == old.launch or old.launch.protocol is broken
    assert avoid_in_tables(fabric, frozenset()) == (fabric.rules, fabric.fused_rules, fabric.gather_rules)


@pytest.mark.parametrize(
    "broken", [{Protocol.LINES, Protocol.SENTINEL}, {Protocol.LINES, Protocol.FLAGS}, set(Protocol)]
)
def test_a_table_with_nothing_left_is_refused(broken: set[Protocol]) -> None:
    with pytest.raises(UnsupportedError, match="must pass the start-up probe, none did"):
        avoid_in_tables(push_fabric(), frozenset(broken))
