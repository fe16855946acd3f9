"""Launch shapes and memory layout: what covers a message, what fits, what never overlaps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastverify.comm.cuda.launch import Launch, Protocol, Rule, check_fits, choose_launch, fused_launch
from fastverify.comm.cuda.workspace import Layout
from fastverify.errors import ConfigError, ShapeError

RULES = (Rule(8192, Launch(Protocol.LINES, 16, 256)), Rule(65536, Launch(Protocol.SENTINEL, 64, 512, units=2)))


@pytest.mark.parametrize(
    ("num_bytes", "protocol", "blocks"),
    [(1, Protocol.LINES, 1), (8192, Protocol.LINES, 4), (8193, Protocol.SENTINEL, 1), (1 << 24, Protocol.SENTINEL, 64)],
)
def test_rule_and_blocks_follow_the_size(num_bytes: int, protocol: Protocol, blocks: int) -> None:
    launch = choose_launch(RULES, num_bytes)
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


def test_a_row_of_seven_bytes_too_many_is_refused() -> None:
    with pytest.raises(ShapeError, match="multiple of 16 bytes, got 23"):
        fused_launch(Protocol.LINES, 1, 23, cluster=1, max_blocks=8)


@pytest.mark.parametrize("fields", [{"threads": 100}, {"threads": 2048}, {"blocks": 0}, {"units": 3}, {"cluster": 3}])
def test_impossible_launches_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        Launch(**{"protocol": Protocol.LINES, "blocks": 4, "threads": 256, **fields})


def test_ranks_that_do_not_fit_one_gpu_are_refused() -> None:
    launch = Launch(Protocol.FLAGS, 33, 1024)
    check_fits(launch, 2, num_multiprocessors=132, threads_per_multiprocessor=1024)
    with pytest.raises(ConfigError, match="3 ranks of 33 blocks"):
        check_fits(launch, 3, num_multiprocessors=132, threads_per_multiprocessor=1024)


@given(world_size=st.integers(2, 8), max_bytes=st.integers(16, 1 << 22))
def test_regions_do_not_overlap_and_hold_the_largest_message(world_size: int, max_bytes: int) -> None:
    layout = Layout(world_size, max_bytes)
    end = 0
    for protocol in Protocol:
        region = layout.region(protocol)
        assert region.offset == end
        assert region.offset % 256 == region.area_bytes % 256 == 0
        assert region.area_bytes * protocol.unit_bytes >= max_bytes * 16
        assert region.num_bytes >= 2 * world_size * region.area_bytes
        end = region.offset + region.num_bytes
    assert layout.num_bytes == end


def test_the_smallest_chunks_have_a_flag_each() -> None:
    layout, launch = Layout(2, 100_000), Launch(Protocol.FLAGS, 1, 32)
    region = layout.region(Protocol.FLAGS)
    flags = (region.num_bytes - 4 * region.area_bytes) // (4 * 64)
    assert flags == layout.max_chunks >= 100_000 / launch.batch_bytes


def test_world_sizes_and_sizes_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="2 to 8 ranks, got 9"):
        Layout(9, 1024)
    with pytest.raises(ConfigError, match="at least 16 bytes, got 8"):
        Layout(2, 8)
