"""Launch shapes and memory layout: what covers a message, what fits, what never overlaps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastverify.comm.cuda.call import make_call
from fastverify.comm.cuda.host import host_fabric, host_layout
from fastverify.comm.cuda.launch import (
    Algorithm,
    Launch,
    Protocol,
    Rule,
    candidate_launches,
    cap_blocks,
    check_fits,
    choose_launch,
    find_fused_rule,
    fused_launch,
    max_units,
    num_batches,
)
from fastverify.comm.cuda.push import push_fabric, push_layout
from fastverify.comm.cuda.rank import Fabric
from fastverify.comm.cuda.workspace import Layout, Phase
from fastverify.errors import ConfigError, ShapeError

RULES = (Rule(8192, Launch(Protocol.LINES, 16, 256)), Rule(65536, Launch(Protocol.SENTINEL, 64, 512, units=2)))


@pytest.mark.parametrize(
    ("num_bytes", "protocol", "blocks"),
    [(1, Protocol.LINES, 1), (8192, Protocol.LINES, 4), (8193, Protocol.SENTINEL, 1), (1 << 24, Protocol.SENTINEL, 64)],
)
def test_rule_and_blocks_follow_the_size(num_bytes: int, protocol: Protocol, blocks: int) -> None:
    launch = choose_launch(RULES, num_bytes, 2)
    assert (launch.protocol, launch.blocks) == (protocol, blocks)


@given(
    protocol=st.sampled_from([Protocol.LINES, Protocol.SENTINEL]),
    num_rows=st.integers(1, 300),
    row_bytes=st.integers(1, 4096).map(lambda n: 16 * n),
    cluster=st.sampled_from([1, 2, 4, 8]),
    max_blocks=st.integers(1, 128),
)
def test_a_cluster_covers_its_row(
    protocol: Protocol, num_rows: int, row_bytes: int, cluster: int, max_blocks: int
) -> None:
    try:
        launch = fused_launch(protocol, num_rows, row_bytes, cluster=cluster, max_blocks=max_blocks)
    except ShapeError:
        assert row_bytes > cluster * 2048 * protocol.unit_bytes
        return
    assert launch.cluster * launch.batch_bytes >= row_bytes
    assert launch.blocks // cluster <= num_rows
    assert launch.threads * launch.units <= 2048
    assert launch.blocks <= max(max_blocks, cluster)


@pytest.mark.parametrize("fabric", [push_fabric(), host_fabric()], ids=lambda fabric: fabric.name)
@pytest.mark.parametrize("row_bytes", [1024, 8192, 14_336, 16_384, 32_768, 65_536])
def test_a_row_fits_whatever_the_table_gives_it(fabric: Fabric, row_bytes: int) -> None:
    """Up to rows of 16384 float32 numbers; what does not fit is summed and normed separately."""
    for num_rows in (1, 4, 16, 64, 512):
        shape = find_fused_rule(fabric.fused_rules, num_rows, row_bytes)
        fused_launch(shape.protocol, num_rows, row_bytes, cluster=shape.cluster, max_blocks=shape.blocks)


def test_a_row_of_seven_bytes_too_many_is_refused() -> None:
    with pytest.raises(ShapeError, match="multiple of 16 bytes, got 23"):
        fused_launch(Protocol.LINES, 1, 23, cluster=1, max_blocks=8)


@pytest.mark.parametrize("fields", [{"threads": 100}, {"threads": 2048}, {"blocks": 0}, {"units": 3}, {"cluster": 3}])
def test_impossible_launches_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        Launch(**{"protocol": Protocol.LINES, "blocks": 4, "threads": 256, **fields})


def test_ranks_that_do_not_fit_one_gpu_are_refused() -> None:
    launch = Launch(Protocol.FLAGS, 65, 512)
    check_fits(launch, 2, num_multiprocessors=132, blocks_per_multiprocessor=1)
    check_fits(launch, 3, num_multiprocessors=132, blocks_per_multiprocessor=2)
    with pytest.raises(ConfigError, match="65 blocks of each of 3 ranks"):
        check_fits(launch, 3, num_multiprocessors=130, blocks_per_multiprocessor=2)


layouts = st.builds(Layout, st.integers(2, 8), st.integers(16, 1 << 22), st.booleans())


@given(layout=layouts)
def test_regions_do_not_overlap(layout: Layout) -> None:
    end = 0
    for region in layout.regions.values():
        assert region.offset == end
        assert region.offset % 256 == region.slot_bytes % 256 == region.flags % 256 == 0
        end = region.offset + region.num_bytes
    assert layout.num_bytes == end


@given(layout=layouts, data=st.data(), item_bytes=st.sampled_from([2, 4]))
def test_areas_and_flags_of_any_call_fit_a_slot(layout: Layout, data: st.DataObject, item_bytes: int) -> None:
    protocol = data.draw(st.sampled_from(Protocol))
    algorithm = data.draw(st.sampled_from(layout.algorithms(protocol)))
    launch = Launch(protocol, 1, data.draw(st.sampled_from([32, 512])), algorithm=algorithm)
    num_bytes = data.draw(st.integers(1, layout.largest_message(algorithm, protocol)))
    call = make_call(layout, [0] * layout.world_size, 0, launch, num_bytes, item_bytes)
    parts = algorithm.num_parts(layout.world_size)
    part_units = -(-num_bytes // (protocol.unit_bytes * parts))
    needs = {Phase.FIRST: part_units}
    if algorithm is not Algorithm.ONE_SHOT:
        needs[Phase.GATHER] = part_units
    if algorithm is Algorithm.ISLANDS:
        needs[Phase.EXCHANGE] = part_units * 4 // item_bytes
    for phase, units in needs.items():
        region = call.regions[phase]
        num_areas = 2 if phase is Phase.EXCHANGE else parts if algorithm is Algorithm.ISLANDS else layout.world_size
        if layout.uses_outbox(protocol):
            num_areas = 1
            units = -(-num_bytes // protocol.unit_bytes) if phase is Phase.FIRST else units
        assert region.area_bytes >= 16 * units
        assert num_areas * region.area_bytes <= region.flags
        if protocol is Protocol.FLAGS:
            flags = num_areas * num_batches(launch, num_bytes, layout.world_size)
            assert region.flags + 64 * flags <= region.slot_bytes


@given(layout=layouts, data=st.data(), row_units=st.integers(1, 64))
def test_pieces_cover_a_message_once(layout: Layout, data: st.DataObject, row_units: int) -> None:
    protocol = data.draw(st.sampled_from(Protocol))
    launch = Launch(protocol, 1, 32, algorithm=data.draw(st.sampled_from(layout.algorithms(protocol))))
    limit = layout.largest_message(launch.algorithm, protocol)
    num_bytes = data.draw(st.integers(1, 20 * limit))
    end = 0
    for start, size in layout.pieces(launch, num_bytes):
        assert start == end
        assert start % 16 == 0
        assert 0 < size <= limit
        end = start + size
    assert end == num_bytes
    row_bytes = 16 * row_units
    if row_bytes <= limit:
        assert all(size % row_bytes == 0 for _, size in layout.pieces(launch, 7 * row_bytes, row_bytes))
    else:
        with pytest.raises(ShapeError, match=f"a row must have at most {limit} bytes here, got {row_bytes}"):
            layout.pieces(launch, 7 * row_bytes, row_bytes)


def test_islands_are_halves_of_four_or_eight_ranks_in_gpu_memory() -> None:
    for world_size in range(2, 9):
        for layout in (push_layout(world_size), host_layout(world_size)):
            has_islands = Algorithm.ISLANDS in layout.algorithms(Protocol.SENTINEL)
            assert has_islands == (world_size in (4, 8) and not layout.has_outboxes)
            assert layout.algorithms(Protocol.FLAGS) == (Algorithm.ONE_SHOT, Algorithm.TWO_SHOT)
    with pytest.raises(ConfigError, match="islands use lines or sentinels"):
        Launch(Protocol.FLAGS, 1, 32, algorithm=Algorithm.ISLANDS)


def test_memory_stays_sensible() -> None:
    """The table in workspace.py."""
    sizes = {n: [layout(n).num_bytes / 2**20 for layout in (push_layout, host_layout)] for n in (2, 4, 8)}
    expected = {2: [30.4, 36.0], 4: [50.4, 18.5], 8: [29.4, 12.2]}
    assert {n: pytest.approx(mb, abs=0.05) for n, mb in sizes.items()} == expected


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("fabric", ["push", "host"])
@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
def test_candidates_are_a_handful_that_can_run(world_size: int, fabric: str, fused: bool) -> None:
    layout = push_layout(world_size) if fabric == "push" else host_layout(world_size)
    for num_bytes in (4096, 8192, 14_336, 57_344, 172_032, 229_376, 1 << 20, 4 << 20):
        candidates = candidate_launches(fabric, world_size, num_bytes, fused=fused)
        assert 6 <= len(candidates) <= 16
        assert len(set(candidates)) == len(candidates)
        for launch in candidates:
            assert launch.algorithm in layout.algorithms(launch.protocol)
            assert launch.units <= max_units(world_size)
            assert fused or launch.threads <= 512
            assert fused or launch.blocks <= num_batches(launch, num_bytes, world_size)
        if world_size > 2 and not fused:
            assert {launch.algorithm for launch in candidates} >= {Algorithm.ONE_SHOT, Algorithm.TWO_SHOT}


def test_capped_rules_keep_whole_clusters() -> None:
    launches = (
        Launch(Protocol.LINES, 16, 64),
        Launch(Protocol.SENTINEL, 128, 64),
        Launch(Protocol.SENTINEL, 128, 64, cluster=8),
    )
    rules = tuple(Rule(i + 1, launch) for i, launch in enumerate(launches))
    assert [rule.launch.blocks for rule in cap_blocks(rules, 21)] == [16, 21, 16]
    assert [rule.launch.blocks for rule in cap_blocks(rules, 1)] == [1, 1, 8]


def test_candidates_of_unknown_memory_are_refused() -> None:
    with pytest.raises(ConfigError, match="memory is push or host, got 'nvlink'"):
        candidate_launches("nvlink", 2, 4096, fused=False)


def test_world_sizes_and_sizes_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="2 to 8 ranks, got 9"):
        Layout(9, 1024)
    with pytest.raises(ConfigError, match="at least 16 bytes, got 8"):
        Layout(2, 8)
