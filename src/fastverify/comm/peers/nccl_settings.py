"""NCCL's environment variables as named settings: what the benchmark's lanes run with, and what an experiment changes.

NCCL reads them once per process, so a setting needs processes of its own, and a captured graph keeps what it was
captured with. The values are those of tuning/catalogue/common.yaml, as far as that offers them; a test holds both
together. NVLink multicast stays off in all of them. It knows versions and texts, not NCCL itself.
Sources: NCCL src/enqueue.cc, src/graph/tuning.cc and src/graph/paths.cc; vllm pull request 58179.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from fastverify.comm.backend import SUPPORTED, Support

Version = tuple[int, ...]
# Named per function (`allreduce:tree`) since 2.24; a list for all functions goes first since 2.31.
_PER_FUNCTION: Version = (2, 24)
_DEFAULT_FIRST: Version = (2, 31)
_MULTICAST_OFF = {"NCCL_NVLS_ENABLE": "0"}
# How a collective without an algorithm fails, up to 2.30 and since.
NO_ALGORITHM_TEXTS = ("No algorithm/protocol available for function", "nor symKernelId available for function")
_CAPTURE_TEXTS = ("operation failed due to a previous error during capture", "cudaErrorStreamCapture")


@dataclass(frozen=True)
class NcclSetting:
    """One set of variables. `experiment`: its entry in the catalogue, "" where it is for comparison only."""

    name: str
    summary: str
    changes: Mapping[str, str]
    since: Version = ()
    before: Version = ()
    min_world_size: int = 2
    pcie_only: bool = False
    caution: str = ""
    experiment: str = ""

    @property
    def env(self) -> dict[str, str]:
        """All variables that a process of this setting gets."""
        return {**_MULTICAST_OFF, **self.changes}

    def find_support(self, nccl_version: Version, world_size: int, is_pcie: bool = True) -> Support:
        """Whether it means anything to this NCCL, number of ranks and fabric (`is_pcie`: no NVLink between them)."""
        if self.since and nccl_version < self.since:
            return Support(ok=False, reason=f"{self.name} needs NCCL {_text(self.since)}, got {_text(nccl_version)}")
        if self.before and nccl_version >= self.before:
            reason = f"{self.name} is for NCCL before {_text(self.before)}, got {_text(nccl_version)}"
            return Support(ok=False, reason=reason)
        if world_size < self.min_world_size:
            return Support(ok=False, reason=f"{self.name} needs {self.min_world_size} ranks, got {world_size}")
        if self.pcie_only and not is_pcie:
            return Support(ok=False, reason=f"{self.name} changes nothing where NVLink connects the GPUs")
        return SUPPORTED


_SETTINGS = (
    NcclSetting("default", "NCCL as it comes", {}),
    NcclSetting(
        "p2p_off",
        "through host memory, as where GPUs cannot reach each other",
        {"NCCL_P2P_DISABLE": "1"},
        caution="Only to see what GPUs without peer access would get.",
    ),
    NcclSetting("ll", "8-byte lines that carry their own flags", {"NCCL_PROTO": "LL"}),
    NcclSetting(
        "ll128",
        "128-byte lines for all-reduce only",
        {"NCCL_PROTO": "^LL128;allreduce:LL128"},
        since=_PER_FUNCTION,
        pcie_only=True,
        caution=(
            "NCCL never picks LL128 over PCIe by itself: it needs stores of 128 bytes that arrive whole, and where "
            "they do not, sums are silently wrong. Keep it only behind a data check at every message size."
        ),
        experiment="nccl.ll128",
    ),
    NcclSetting("simple", "data first, one flag after", {"NCCL_PROTO": "Simple"}),
    NcclSetting("ring", "ring for every collective", {"NCCL_ALGO": "Ring"}),
    NcclSetting(
        "tree_plain",
        "tree for every collective, as users write it",
        {"NCCL_ALGO": "Tree"},
        caution=(
            "Only all-reduce has a tree: since NCCL 2.24 the first broadcast or all-gather fails, and inside a CUDA "
            "graph capture that ends the capture. Use tree, or tree_2_31 from NCCL 2.31 on."
        ),
    ),
    NcclSetting(
        "tree",
        "tree for all-reduce only",
        {"NCCL_ALGO": "allreduce:tree"},
        since=_PER_FUNCTION,
        before=_DEFAULT_FIRST,
        experiment="nccl.tree",
    ),
    NcclSetting(
        "tree_2_31",
        "tree for all-reduce only, for NCCL 2.31 and newer",
        {"NCCL_ALGO": "ring,tree;allreduce:tree"},
        since=_DEFAULT_FIRST,
        experiment="nccl.tree-2.31",
    ),
    NcclSetting("channels_2", "exactly 2 channels", {"NCCL_MIN_NCHANNELS": "2", "NCCL_MAX_NCHANNELS": "2"}),
    NcclSetting("channels_4", "exactly 4 channels", {"NCCL_MIN_NCHANNELS": "4", "NCCL_MAX_NCHANNELS": "4"}),
    NcclSetting("channels_8", "at least 8 channels", {"NCCL_MIN_NCHANNELS": "8"}, experiment="nccl.channels"),
    NcclSetting(
        "few_channels",
        "at most 2 channels and buffers of 1 MB",
        {"NCCL_MAX_NCHANNELS": "2", "NCCL_BUFFSIZE": "1048576"},
        experiment="nccl.fewer-channels",
    ),
    NcclSetting("buffsize_1m", "buffers of 1 MB instead of 4", {"NCCL_BUFFSIZE": "1048576"}),
    NcclSetting(
        "p2p_level_sys",
        "peer access across root complexes and sockets",
        {"NCCL_P2P_LEVEL": "SYS"},
        pcie_only=True,
        experiment="nccl.p2p-level",
    ),
    NcclSetting("p2p_level_phb", "peer access within a root complex", {"NCCL_P2P_LEVEL": "PHB"}, pcie_only=True),
    NcclSetting(
        "graph_mixing_off",
        "no events between captured and eager calls",
        {"NCCL_GRAPH_MIXING_SUPPORT": "0"},
        caution="Only where captured and eager NCCL calls of one communicator never overlap.",
    ),
)
NCCL_SETTINGS: Mapping[str, NcclSetting] = MappingProxyType({setting.name: setting for setting in _SETTINGS})


def find_correction(setting: NcclSetting, error_text: str, nccl_version: Version) -> NcclSetting | None:
    """The setting to run instead where this one failed because a collective has no such algorithm."""
    if not _is_missing_algorithm(setting, error_text):
        return None
    return NCCL_SETTINGS["tree_2_31" if nccl_version >= _DEFAULT_FIRST else "tree"]


def explain_failure(setting: NcclSetting, error_text: str, nccl_version: Version = ()) -> str | None:
    """Why NCCL failed under this setting and what to set instead; None where the text says something else."""
    correction = find_correction(setting, error_text, nccl_version)
    if correction is None:
        return None
    algorithm = setting.changes["NCCL_ALGO"]
    captured = " Inside a capture the error ended the capture as well." if _names_capture(error_text) else ""
    return (
        f"NCCL_ALGO={algorithm} holds for every collective, and tree and NVLS implement all-reduce only: "
        f"{_failed_function(error_text)} found no algorithm.{captured} Name the function: "
        f"NCCL_ALGO={correction.changes['NCCL_ALGO']!r} (setting {correction.name})."
    )


def _is_missing_algorithm(setting: NcclSetting, error_text: str) -> bool:
    algorithm = setting.changes.get("NCCL_ALGO", "").lower()
    if "tree" not in algorithm and "nvls" not in algorithm:
        return False
    # The capture's own error hides NCCL's: with such a setting there is one cause for it.
    return any(text.lower() in error_text.lower() for text in NO_ALGORITHM_TEXTS) or _names_capture(error_text)


def _names_capture(error_text: str) -> bool:
    return any(text.lower() in error_text.lower() for text in _CAPTURE_TEXTS)


def _failed_function(error_text: str) -> str:
    """`Broadcast` of "... available for function Broadcast with datatype ..."."""
    _, found, rest = error_text.partition("available for function ")
    return rest.split()[0] if found and rest.split() else "a broadcast or all-gather"


def _text(version: Version) -> str:
    return ".".join(map(str, version))
