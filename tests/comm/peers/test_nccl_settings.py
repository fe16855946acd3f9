import pytest

from fastverify.comm.peers.nccl_settings import NCCL_SETTINGS, explain_failure, find_correction
from fastverify.diagnosis.known_bugs import known_bugs
from fastverify.tuning.catalogue.entry import catalogue_of

NEW, OLD = (2, 31, 0), (2, 28, 9)
# As torch 2.11 with NCCL 2.28.9 words it; the last line is NCCL's src/enqueue.cc.
BROADCAST_ERROR = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3699, invalid usage (run with "
    "NCCL_DEBUG=WARN for details), NCCL version 2.28.9\n"
    "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
    "Last error:\n"
    "No algorithm/protocol available for function Broadcast with datatype ncclInt8. NCCL_ALGO was set to Tree."
)
NEW_ERROR = (
    "Last error:\nNo algorithm/protocol nor symKernelId available for function AllGather with datatype ncclInt8. "
    "NCCL_ALGO was set to allreduce:tree. NCCL_PROTO was set to Simple."
)
CAPTURE_ERROR = "CUDA error: operation failed due to a previous error during capture"
SHARED = [(name, setting.experiment) for name, setting in NCCL_SETTINGS.items() if setting.experiment]


@pytest.mark.parametrize(("name", "experiment"), SHARED)
def test_a_setting_is_what_the_catalogue_offers(name: str, experiment: str) -> None:
    entry = next(entry for entry in catalogue_of("vllm") if entry.id == experiment)
    setting = NCCL_SETTINGS[name]
    assert dict(setting.changes) == entry.env
    for version in ("2.23.4", "2.28.9", "2.31.0", "2.32.3"):
        parts = tuple(map(int, version.split(".")))
        assert setting.find_support(parts, 8).ok == (entry.nccl is None or entry.nccl.contains(version)), version


def test_every_nccl_experiment_of_the_catalogue_has_a_setting() -> None:
    offered = {
        entry.id
        for entry in catalogue_of("vllm")
        if entry.id.startswith("nccl.") and "NCCL_GRAPH_FILE" not in entry.env
    }
    assert offered == {experiment for _, experiment in SHARED}


def test_the_registry_of_bugs_knows_the_same_texts_and_the_same_way_out() -> None:
    bug = next(bug for bug in known_bugs() if bug.id == "nccl-tree-for-everything")
    for text in bug.log_contains:
        assert explain_failure(NCCL_SETTINGS["tree_plain"], f"{text} Broadcast", OLD)
    for name in ("tree", "tree_2_31"):
        assert NCCL_SETTINGS[name].changes["NCCL_ALGO"] in bug.works


def test_multicast_is_off_in_every_setting() -> None:
    assert all(setting.env["NCCL_NVLS_ENABLE"] == "0" for setting in NCCL_SETTINGS.values())


@pytest.mark.parametrize(
    ("error", "version", "correction"),
    [(BROADCAST_ERROR, OLD, "tree"), (BROADCAST_ERROR, NEW, "tree_2_31"), (CAPTURE_ERROR, OLD, "tree")],
)
def test_bare_tree_is_explained_and_corrected(error: str, version: tuple[int, ...], correction: str) -> None:
    found = find_correction(NCCL_SETTINGS["tree_plain"], error, version)
    assert found is NCCL_SETTINGS[correction]
    assert found.find_support(version, 8).ok
    told = explain_failure(NCCL_SETTINGS["tree_plain"], error, version)
    assert told is not None
    assert found.env["NCCL_ALGO"] in told


def test_the_explanation_names_the_function_and_the_capture() -> None:
    told = explain_failure(NCCL_SETTINGS["tree_plain"], BROADCAST_ERROR, OLD) or ""
    assert "Broadcast found no algorithm" in told
    assert "capture" not in told
    assert "capture" in (explain_failure(NCCL_SETTINGS["tree_plain"], CAPTURE_ERROR, OLD) or "")


def test_the_fix_of_old_versions_fails_on_new_ones_and_is_corrected_too() -> None:
    assert find_correction(NCCL_SETTINGS["tree"], NEW_ERROR, NEW) is NCCL_SETTINGS["tree_2_31"]


@pytest.mark.parametrize(
    ("setting", "error"),
    [("default", BROADCAST_ERROR), ("ll", CAPTURE_ERROR), ("tree_plain", "ncclSystemError: no route to host")],
)
def test_other_failures_are_not_explained_away(setting: str, error: str) -> None:
    assert explain_failure(NCCL_SETTINGS[setting], error, OLD) is None


def test_refusals_say_why() -> None:
    assert "2.31" in NCCL_SETTINGS["tree"].find_support(NEW, 8).reason
    assert "2.24" in NCCL_SETTINGS["ll128"].find_support((2, 21, 5), 2).reason
    assert "NVLink" in NCCL_SETTINGS["p2p_level_sys"].find_support(OLD, 2, is_pcie=False).reason
    assert NCCL_SETTINGS["default"].find_support(OLD, 1).reason
