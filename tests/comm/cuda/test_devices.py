"""Facts about GPUs and NUMA nodes, from made-up files and GPUs."""

import mmap
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fastverify.comm.cuda import numa
from fastverify.comm.cuda.devices import UNKNOWN_NODE, find_unreachable, largest_share, read_numa_node


def test_numa_node_of_a_bus_address(tmp_path: Path) -> None:
    folder = tmp_path / "0000:1b:00.0"
    folder.mkdir()
    (folder / "numa_node").write_text("1\n")
    assert read_numa_node("0000:1B:00.0", tmp_path) == 1
    (folder / "numa_node").write_text("-1\n")
    assert read_numa_node("0000:1b:00.0", tmp_path) == UNKNOWN_NODE
    assert read_numa_node("0000:1c:00.0", tmp_path) == UNKNOWN_NODE


def test_only_gpus_that_this_process_sees_can_be_called_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def can_access(device: int, peer: int) -> bool:
        asked.append((device, peer))
        return peer != 2

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid="bac"[index]))
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", can_access)
    gpus = ("a", "b", "c", "hidden", "a")
    assert find_unreachable(0, gpus) == [2]
    assert asked == [(1, 0), (1, 2)]
    assert find_unreachable(3, gpus) == []


def test_ranks_on_one_gpu_are_counted() -> None:
    assert largest_share(("a", "b", "a")) == 2
    assert largest_share(("a", "b")) == 1


def test_pages_are_placed_where_the_kernel_allows_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pages = torch.frombuffer(mmap.mmap(-1, 1 << 16), dtype=torch.uint8)
    (tmp_path / "node0").mkdir()
    (tmp_path / "node1").mkdir()
    assert numa.num_nodes(tmp_path) == 2
    monkeypatch.setattr(numa, "num_nodes", lambda: 2)
    # Node 0 is there on every machine; a sandbox may forbid the call, which must be said.
    assert numa.place(pages.data_ptr(), 1 << 16, 0).startswith(
        ("on NUMA node 0", "where they are first touched (mbind")
    )
    assert "mbind to node 1000" in numa.place(pages.data_ptr(), 1 << 16, 1000)
    assert "not known" in numa.place(pages.data_ptr(), 1 << 16, UNKNOWN_NODE)
    monkeypatch.setattr(numa, "num_nodes", lambda: 1)
    assert numa.place(pages.data_ptr(), 1 << 16, 1) == "on the only NUMA node"
    pages[0] = 1
