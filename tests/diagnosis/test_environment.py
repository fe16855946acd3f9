"""The environment dump: from the outputs of NVIDIA's tools to facts that `diagnose` reads back; redaction; ACS bits."""

import json
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from fastverify.diagnosis import gpu_facts
from fastverify.diagnosis.acs import count_redirecting_bridges
from fastverify.diagnosis.collect import collect_documents
from fastverify.diagnosis.environment import read_environment
from fastverify.diagnosis.host_facts import format_cores, iommu_of_groups
from fastverify.diagnosis.redact import redact
from fastverify.diagnosis.reported import MachineFacts
from fastverify.diagnosis.tool_output import ToolOutput, run_tool
from tests.diagnosis.readers import texts

ROW = "NVIDIA RTX PRO 6000, 00000000:{bus}:00.0, 580.126.09, 12.0, 5, 5, {width}, 16, {load}, {watts}, 600.00, 600.00, "
ROW += "0x0000000000000004, 2400, Enabled, [N/A]"
TABLES = texts.TOPOLOGY.split("\n\n")


class Machine:
    """Answers like the tools of a machine with two GPUs."""

    def __init__(self, load: int = 97, unknown_property: str = "") -> None:
        self.load = load
        self.unknown_property = unknown_property

    def __call__(self, arguments: Sequence[str]) -> ToolOutput:
        command = " ".join(arguments)
        if arguments[1].startswith("--query-gpu="):
            return self._query(arguments[1].partition("=")[2].split(","), command)
        if arguments[1] == "topo":
            kind = {"-m": 0, "a": 1, "r": 2, "w": 2}[arguments[-1]]
            return ToolOutput(command, TABLES[kind].partition("\n")[2])
        return ToolOutput(command, texts.LSPCI if arguments[0] == "lspci" else None, "not installed")

    def _query(self, names: list[str], command: str) -> ToolOutput:
        if self.unknown_property in names:
            return ToolOutput(command, None, f'exit code 2: Field "{self.unknown_property}" is not a valid field')
        rows = [
            ROW.format(bus=bus, width=width, load=self.load, watts=watts).split(", ")
            for bus, width, watts in (("01", 16, 150.0), ("41", 8, 120.0))
        ]
        places = [list(gpu_facts.PROPERTIES).index(name) for name in names]
        return ToolOutput(command, "\n".join(", ".join(row[place] for place in places) for row in rows))


def test_a_dump_of_a_machine_with_gpus_comes_back_as_facts():
    document = read_environment(run=Machine()).to_document()
    result = collect_documents([texts.document(json.dumps(document, indent=1), "env.json")])
    hardware = result.facts.hardware
    assert isinstance(hardware, MachineFacts)
    assert (hardware.gpu, hardware.compute_capability) == ("NVIDIA RTX PRO 6000", "12.0")
    assert (hardware.pcie_width, hardware.pcie_max_width, hardware.link_under_load) == (8, 16, True)
    assert hardware.gpu_power_share == (0.25, 0.2)
    assert hardware.gpu_utilization == (0.97, 0.97)
    assert (hardware.p2p_read, hardware.p2p_write, hardware.p2p_atomics) == (True, True, False)
    assert hardware.acs_redirect_bridges == 1
    assert hardware.packages["fastverify"]


def test_a_dump_from_the_recorded_output_of_two_h200():
    def run(arguments: Sequence[str]) -> ToolOutput:
        command = " ".join(arguments)
        if arguments[1].startswith("--query-gpu="):
            return ToolOutput(command, texts.H200_QUERY)
        table = texts.H200_TOPOLOGY.partition(f"$ {command}\n")[2].partition("\n$")[0]
        return ToolOutput(command, table or None, "not recorded")

    document = read_environment(run=run).to_document()
    result = collect_documents([texts.document(json.dumps(document, indent=1), "env.json")])
    hardware = result.facts.hardware
    assert isinstance(hardware, MachineFacts)
    assert (hardware.gpu, hardware.num_gpus, hardware.driver_version) == ("NVIDIA H200", 2, "580.159.04")
    assert (hardware.pcie_gen, hardware.pcie_width, hardware.link_under_load) == (5, 16, False)
    assert (hardware.nvlink_all_pairs, hardware.p2p_atomics, hardware.p2p_read) == (True, True, None)
    assert result.facts.fabric == "nvlink"


@pytest.mark.parametrize(("written", "told"), [("1", [0, 1]), ("-1", None)])
def test_numa_nodes_of_gpus_are_told_where_the_firmware_names_them(
    written: str, told: list[int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_facts, "PCI_DEVICES", tmp_path)
    for bus, node in (("0000:01:00.0", "0"), ("0000:41:00.0", written)):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "numa_node").write_text(node)
    environment = read_environment(run=Machine())
    assert environment.facts.get("host.gpu_numa_nodes") == told
    assert ("virtual machines" in environment.unread.get("host.gpu_numa_nodes", "")) == (told is None)


def test_idle_gpus_say_nothing_about_the_width_under_load():
    environment = read_environment(run=Machine(load=0))
    assert environment.facts["hardware.link_under_load"] is False
    assert "idle" in environment.unread["link speed and width under load"]


def test_a_property_that_the_driver_does_not_know_costs_only_itself():
    environment = read_environment(run=Machine(unknown_property="compute_cap"))
    assert environment.facts["hardware.driver_version"] == "580.126.09"
    assert "not a valid field" in environment.unread["hardware.compute_capability"]


def test_without_any_tool_everything_missing_is_listed():
    environment = read_environment(run=lambda arguments: ToolOutput(" ".join(arguments), None, "is not installed"))
    assert environment.unread["GPUs"] == "is not installed"
    assert environment.unread["lspci -vvv"] == "is not installed"
    assert environment.facts["hardware.num_cores"]


def test_tools_that_fail_or_hang_are_told():
    assert "not installed" in run_tool(("no-such-tool-here",)).problem
    assert "exit code 3: no" in run_tool(("sh", "-c", "echo no >&2; exit 3")).problem
    assert "no answer" in run_tool(("sleep", "5"), timeout_s=0.1).problem
    assert run_tool(("echo", "yes")).text == "yes\n"


@pytest.mark.parametrize(
    ("private", "kept"),
    [
        ("HF_TOKEN=hf_abcdefgh12345678", "HF_TOKEN"),
        ("Authorization: Bearer abcdef123456", "Authorization"),
        ("api_key=supersecretvalue", ""),
        ("http://inference-7.corp.internal:30000/metrics", "http://"),
        ("at 10.20.30.40 now", "now"),
        ("/home/someone/models/kimi", "kimi"),
        ("/data/someone/venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2", "site-packages/nvidia/nccl"),
        ("GPU-12345678-abcd-ef01-2345-6789abcdef01", "gpu uuid"),
        ("someone@example.org wrote", "wrote"),
    ],
)
def test_private_parts_go_and_the_rest_stays(private, kept):
    shown = redact(private)
    for word in ("hf_abc", "abcdef123456", "supersecret", "corp", "10.20", "someone", "12345678-abcd", "example"):
        assert word not in shown
    assert kept in shown


def test_redaction_keeps_what_a_diagnosis_needs():
    for text in (
        texts.TOPOLOGY,
        texts.LSPCI,
        "580.126.09",
        "2.28.9",
        "00000000:41:00.0",
        "0-31,64-95",
    ):
        assert redact(text) == text


def config_space(capabilities: list[tuple[int, int]]) -> bytes:
    """4096 bytes whose extended list has these (id, control word), each 0x20 after the last."""
    data = bytearray(4096)
    for place, (identity, control) in enumerate(capabilities):
        offset = 0x100 + 0x20 * place
        following = offset + 0x20 if place + 1 < len(capabilities) else 0
        struct.pack_into("<I", data, offset, identity | 1 << 16 | following << 20)
        struct.pack_into("<H", data, offset + 6, control)
    return bytes(data)


def bridge(folder: Path, name: str, config: bytes, kind: str = "0x060400") -> None:
    (folder / name).mkdir()
    (folder / name / "class").write_text(kind + "\n")
    (folder / name / "config").write_bytes(config)


def test_acs_bits_from_the_configuration_space(tmp_path: Path):
    bridge(tmp_path, "0000:00:01.1", config_space([(0x0001, 0xFFFF), (0x000D, 0x1D)]))
    bridge(tmp_path, "0000:00:02.1", config_space([(0x000D, 0x11)]))
    bridge(tmp_path, "0000:00:03.1", config_space([(0x0001, 0xFFFF)]))
    bridge(tmp_path, "0000:01:00.0", config_space([(0x000D, 0x1D)]), kind="0x030000")
    assert count_redirecting_bridges(tmp_path) == (1, "")
    loop = bytearray(config_space([(0x0001, 0)]))
    struct.pack_into("<I", loop, 0x100, 0x0001 | 0x100 << 20)
    bridge(tmp_path, "0000:00:04.1", bytes(loop))
    assert count_redirecting_bridges(tmp_path) == (1, "")
    bridge(tmp_path, "0000:00:05.1", bytes(64))
    assert count_redirecting_bridges(tmp_path) == (None, "only root may read the configuration space of bridges")


@pytest.mark.parametrize(
    ("types", "has_folder", "mode"),
    [
        (["identity", "identity"], True, "passthrough"),
        (["identity", "DMA-FQ"], True, "translated"),
        ([], True, "off"),
        ([], False, None),
        (["unmanaged"], True, None),
    ],
)
def test_iommu_by_the_types_of_its_groups(types, has_folder, mode):
    assert iommu_of_groups(types, has_folder=has_folder) == mode


def test_core_ranges():
    assert format_cores([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
