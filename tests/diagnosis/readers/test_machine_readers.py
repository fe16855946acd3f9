"""Topology, PCIe and software dumps."""

import pytest

from fastverify.diagnosis.readers.nccl_debug import read_nccl_debug
from fastverify.diagnosis.readers.pci import iommu_mode, read_kernel_command_line, read_lspci
from fastverify.diagnosis.readers.software import read_software, read_variables
from fastverify.diagnosis.readers.topology import read_topology
from tests.diagnosis.readers import texts


def test_topology_and_peer_access_by_kind():
    reading = read_topology(texts.document(texts.TOPOLOGY))
    assert reading is not None
    found = {piece.name: piece.value for piece in reading.evidence}
    assert found["hardware.num_gpus"] == 4
    assert found["hardware.worst_link"] == "SYS"
    assert found["hardware.num_numa_nodes"] == 2
    assert (found["hardware.p2p_read"], found["hardware.p2p_write"]) == ("true", "true")
    assert found["hardware.p2p_atomics"] == "false"
    assert found["fabric"] == "pcie"
    assert len(reading.notes) == 1
    assert "GPU0-GPU1 NS" in reading.notes[0]


def test_nvlink_everywhere_and_in_pairs():
    everywhere = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-1\nGPU1\tNV18\t X \t0-1\n"
    reading = read_topology(texts.document(everywhere))
    assert reading is not None
    assert reading.values("fabric") == ("nvlink",)
    reading = read_topology(texts.document(texts.TOPOLOGY.replace("PIX", "NV4")))
    assert reading is not None
    assert reading.values("fabric") == ("nvlink-partial",)
    assert reading.values("hardware.nvlink_all_pairs") == ("false",)


@pytest.mark.parametrize("text", [texts.H200_TOPOLOGY, texts.H200_TOPOLOGY.replace("\x1b", "")], ids=["file", "pasted"])
def test_tables_as_nvidia_smi_really_prints_them(text):
    reading = read_topology(texts.document(text))
    assert reading is not None
    found = {piece.name: piece.value for piece in reading.evidence}
    assert (found["fabric"], found["hardware.worst_link"], found["hardware.num_numa_nodes"]) == ("nvlink", "NV18", 1)
    assert found["hardware.p2p_atomics"] == "true"
    reading = read_software(texts.document(texts.H200_SMI))
    assert reading is not None
    assert reading.values("hardware.gpu_power_share") == pytest.approx((94 / 700, 108 / 700))
    assert reading.values("hardware.gpu_utilization") == (0.0, 0.0)


def test_a_peer_table_without_its_command_is_told_not_guessed():
    table = texts.TOPOLOGY.partition("$ nvidia-smi topo -p2p a\n")[2].partition("\n\n")[0]
    reading = read_topology(texts.document(table))
    assert reading is not None
    assert reading.evidence == ()
    assert "topo -p2p r" in reading.notes[0]


def test_lspci_counts_redirecting_bridges_and_reads_gpu_links_only():
    reading = read_lspci(texts.document(texts.LSPCI))
    assert reading is not None
    found = {piece.name: piece.value for piece in reading.evidence}
    assert found["hardware.acs_redirect_bridges"] == 1
    assert (found["hardware.pcie_gen"], found["hardware.pcie_width"]) == (4, 8)
    assert (found["hardware.pcie_max_gen"], found["hardware.pcie_max_width"]) == (5, 16)


def test_lspci_without_root_does_not_say_that_acs_is_off():
    text = texts.LSPCI.replace("ACSCtl:", "Capabilities: <access denied>")
    reading = read_lspci(texts.document(text))
    assert reading is not None
    assert reading.values("hardware.acs_redirect_bridges") == ()
    assert "root" in reading.notes[0]


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        ("BOOT_IMAGE=/vmlinuz root=/dev/sda1 amd_iommu=on iommu=pt", "passthrough"),
        ("BOOT_IMAGE=/vmlinuz intel_iommu=on", "translated"),
        ("root=/dev/sda1 iommu=off", "off"),
        ("BOOT_IMAGE=/vmlinuz quiet", None),
    ],
)
def test_iommu_by_kernel_command_line(words, mode):
    assert iommu_mode(words.split()) == mode
    reading = read_kernel_command_line(texts.document(words))
    assert (reading.values("hardware.iommu") if reading else ()) == ((mode,) if mode else ())


def test_what_the_kernel_logged_counts_and_a_sentence_does_not():
    reading = read_kernel_command_line(texts.document("[ 0.9] iommu: Default domain type: Translated (set via kernel)"))
    assert reading is not None
    assert reading.values("hardware.iommu") == ("translated",)
    assert read_kernel_command_line(texts.document("you could try iommu=pt on that host")) is None


def test_collect_env_of_vllm_and_check_env_of_sglang():
    reading = read_software(texts.document(texts.COLLECT_ENV))
    assert reading is not None
    found = {piece.name: piece.value for piece in reading.evidence}
    assert found["hardware.gpu"] == "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    assert (found["hardware.num_gpus"], found["hardware.num_numa_nodes"], found["hardware.num_cores"]) == (2, 2, 64)
    assert found["hardware.packages.nccl"] == "2.28.9"
    assert found["server_version"] == "0.33.0"
    reading = read_software(texts.document(texts.CHECK_ENV))
    assert reading is not None
    found = {piece.name: piece.value for piece in reading.evidence}
    assert (found["hardware.num_gpus"], found["hardware.compute_capability"]) == (8, "9.0")
    assert found["hardware.packages.flashinfer-cubin"] == "0.6.8.post1"


def test_variables_without_secrets():
    reading = read_variables(texts.document(texts.COLLECT_ENV + "export VLLM_API_KEY=abc\n"))
    assert reading is not None
    assert [piece.name for piece in reading.evidence] == [
        "launch.env.NCCL_P2P_LEVEL",
        "launch.env.OMP_NUM_THREADS",
        "hardware.omp_num_threads",
    ]


def test_power_and_load_of_the_nvidia_smi_table():
    row = "| 30%   45C    P0            120W /  600W |   1000MiB /  97887MiB |    100%      Default |"
    reading = read_software(texts.document(f"| NVIDIA-SMI 580.1   Driver Version: 580.126.09   CUDA |\n{row}\n"))
    assert reading is not None
    assert reading.values("hardware.gpu_power_share") == (0.2,)
    assert reading.values("hardware.gpu_utilization") == (1.0,)


NCCL_LINES = """\
host:1:10 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to SYS
NCCL version 2.28.9+cuda13.0
host:1:10 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 8 cudaDev 0 busId 1000 commId 0x2 - Init COMPLETE
host:1:10 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct
host:1:10 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via SHM/direct/direct
"""


def test_nccl_says_which_transport_joins_the_gpus():
    reading = read_nccl_debug(texts.document(NCCL_LINES))
    assert reading is not None
    found = {piece.name: piece.value for piece in reading.evidence}
    assert found["fabric"] == "host-memory"
    assert (found["tp"], found["hardware.packages.nccl"]) == (8, "2.28.9")
    assert found["launch.env.NCCL_P2P_LEVEL"] == "SYS"
    reading = read_nccl_debug(
        texts.document(NCCL_LINES.replace("01/0 : 0[0] -> 1[1] via SHM", "01/0 : 0[0] -> 1[1] via P2P"))
    )
    assert reading is not None
    assert reading.values("fabric") == ()
