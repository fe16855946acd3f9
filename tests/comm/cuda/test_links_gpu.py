"""`bench links` on real GPUs: what must hold on any machine."""

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU that torch sees"),
]
pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")

from fastverify.comm.cuda.link_report import (  # noqa: E402
    LinkReport,
    Pattern,
    Quantity,
    find_hints,
    judge_collapse,
)
from fastverify.comm.cuda.links import measure_links  # noqa: E402
from fastverify.comm.link_facts import facts_from_report  # noqa: E402


@pytest.fixture(scope="module")
def report() -> LinkReport:
    return measure_links()


def test_every_gpu_is_there_with_its_pcie_link(report: LinkReport) -> None:
    assert len(report.gpus) == torch.cuda.device_count()
    for gpu in report.gpus:
        assert gpu.name == torch.cuda.get_device_name(gpu.index)
        assert gpu.pcie_busy is None or gpu.pcie_busy.bound_gb_per_s > 0
        if gpu.pcie_busy and gpu.pcie_idle:
            assert gpu.pcie_busy.bound_gb_per_s >= gpu.pcie_idle.bound_gb_per_s


def test_one_gpu_alone_has_flags_and_host_rows(report: LinkReport) -> None:
    own = report.typical(Quantity.FLAG, target="own memory")
    host = report.typical(Quantity.FLAG, target="host")
    assert own is not None
    assert host is not None
    assert 0.1 < own < host < 20
    for quantity in (Quantity.STORE, Quantity.LOAD):
        rate = report.typical(quantity, target="host")
        assert rate is not None
        assert rate > 1


def test_host_rates_stay_below_the_link(report: LinkReport) -> None:
    for gpu in report.gpus:
        if gpu.pcie_busy is None:
            pytest.skip("the machine does not tell its PCIe link")
        for quantity in (Quantity.STORE, Quantity.LOAD):
            for row in report.find(quantity, target="host"):
                if row.source == gpu.index and row.value is not None:
                    assert row.value < 1.05 * gpu.pcie_busy.bound_gb_per_s


def test_reachable_peers_have_numbers_and_others_a_reason(report: LinkReport) -> None:
    rows = [row for row in report.rows if row.target.startswith("gpu ")]
    assert len(report.gpus) == 1 or rows
    access = {(pair.source, pair.target): pair.can_access for pair in report.pairs}
    for row in rows:
        reachable = access[row.source, int(row.target.removeprefix("gpu "))]
        assert (row.value is not None and row.value > 0) if reachable else row.reason


def test_a_release_costs_no_less_than_data_that_speaks_for_itself(report: LinkReport) -> None:
    for target in ("own memory", "host"):
        plain = report.typical(Quantity.FLAG, target=target)
        release = report.typical(Quantity.RELEASE_FLAG, target=target)
        assert plain is not None
        assert release is not None
        assert release > 0.7 * plain


def test_the_report_is_complete(report: LinkReport) -> None:
    assert LinkReport.from_dict(report.to_dict()) == report
    assert judge_collapse(report).text
    assert isinstance(find_hints(report), list)
    facts = facts_from_report(report)
    assert facts.host_write_gb_per_s > 0
    assert facts.host_flag_us > 0
    assert bool(facts.peer_gb_per_s) == bool(report.typical(Quantity.STORE, Pattern.ALL_AT_ONCE, "all gpus"))
