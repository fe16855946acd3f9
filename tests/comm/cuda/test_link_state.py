"""Texts of nvidia-smi and paths of the kernel."""

from collections.abc import Sequence
from pathlib import Path

from fastverify.comm.cuda.link_report import PcieState
from fastverify.comm.cuda.link_state import PcieReading, find_root_port, read_nvlinks, read_pcie, run_tool

# The layout that driver 580 prints; UUIDs are made up.
NVLINKS = """GPU 0: NVIDIA H100 PCIe (UUID: GPU-6968dfc2-d444-d92c-c36b-6abe53445cb9)
\t Link 0: 26.562 GB/s
\t Link 1: 26.562 GB/s
\t Link 2: <inactive>
\t Link 3: 0 GB/s
GPU 1: NVIDIA H100 PCIe (UUID: GPU-11111111-d444-d92c-c36b-6abe53445cb9)
\t Link 0: <inactive>
"""


def test_pcie_by_bus_address() -> None:
    asked: list[str] = []

    def run(arguments: Sequence[str]) -> str:
        asked.extend(arguments)
        return "00000000:1B:00.0, 1, 16, 5, 16\n0000000F:01:00.0, [N/A], 8, 4, 16\n"

    assert read_pcie(run) == {
        "0000:1b:00.0": PcieReading(PcieState(1, 16), PcieState(5, 16)),
        "000f:01:00.0": PcieReading(None, PcieState(4, 16)),
    }
    assert "--query-gpu=pci.bus_id,pcie.link.gen.current" in asked[1]


def test_nothing_comes_of_a_tool_that_says_nothing() -> None:
    assert read_pcie(lambda _: "") == {}
    assert read_pcie(lambda _: "No devices were found\n") == {}
    assert read_nvlinks(lambda _: "") == {}
    assert run_tool(["there-is-no-such-tool"]) == ""
    assert run_tool(["false"]) == ""


def test_only_active_nvlinks_count() -> None:
    assert read_nvlinks(lambda _: NVLINKS) == {
        "GPU-6968dfc2-d444-d92c-c36b-6abe53445cb9": (2, 53.1),
        "GPU-11111111-d444-d92c-c36b-6abe53445cb9": (0, 0.0),
    }


def test_the_root_port_is_the_first_bridge_below_the_root_complex(tmp_path: Path) -> None:
    devices = tmp_path / "devices"
    links = tmp_path / "bus"
    links.mkdir()
    for address, path in (
        ("0000:1b:00.0", "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1b:00.0"),
        ("0000:1c:00.0", "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:03.0/0000:1c:00.0"),
        ("0000:2b:00.0", "pci0000:25/0000:25:01.0/0000:2b:00.0"),
    ):
        (devices / path).mkdir(parents=True)
        (links / address).symlink_to(devices / path)
    ports = [find_root_port(address, links) for address in ("0000:1B:00.0", "0000:1c:00.0", "0000:2b:00.0")]
    assert ports == ["pci0000:15/0000:15:01.0", "pci0000:15/0000:15:01.0", "pci0000:25/0000:25:01.0"]
    assert find_root_port("0000:ff:00.0", links) == ""
