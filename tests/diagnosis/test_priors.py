"""All-reduce priors: the published tables as they were published, and NCCL's model where there is none."""

import pytest

from fastverify.diagnosis.all_reduce_priors import prior_latency, prior_tables
from fastverify.diagnosis.model_sizes import expert_growth
from fastverify.diagnosis.nccl_model import nccl_ring_us
from tests.diagnosis.field_cases import DOCUMENT

NAMES = {
    "rtx_pro_6000_server_nccl": ("pcie-gen5", "nccl"),
    "l40s_nccl": ("pcie-gen4", "nccl"),
    "h100_sxm_nccl": ("nvlink", "nccl"),
    "h100_sxm_sglang_custom_graph": ("nvlink", "custom"),
}


@pytest.mark.parametrize("name", NAMES)
def test_tables_are_the_published_ones(name: str) -> None:
    fabric, backend = NAMES[name]
    for size, times in DOCUMENT["allreduce_tables"][name].items():
        for ranks, us in zip((2, 4, 8), times, strict=True):
            prior = prior_latency(fabric, ranks, int(size), backend)
            assert prior.us == pytest.approx(us)


def test_every_table_names_source_and_licence() -> None:
    assert all(table.source and table.licence and 0 < table.spread < 1 for table in prior_tables())


@pytest.mark.parametrize(("ranks", "floor_us"), [(2, 8.6), (4, 12.6), (8, 20.6)])
def test_nccl_model_has_its_published_floor(ranks: int, floor_us: float) -> None:
    assert nccl_ring_us("pcie-gen5", ranks, 0) == pytest.approx(floor_us)


def test_model_stands_in_where_no_table_is() -> None:
    assert "latency model" in prior_latency("pcie-gen3", 4, 14336).source
    assert prior_latency("pcie-gen3", 4, 14336, "pcie-ipc") is None
    assert prior_latency("pcie-gen5", 1, 14336) is None


@pytest.mark.parametrize(
    ("experts", "chosen", "rows", "growth"), [(128, 8, 4, 3.64), (128, 8, 16, 10.3), (512, 10, 32, 24.0)]
)
def test_expert_growth(experts: int, chosen: int, rows: int, growth: float) -> None:
    assert expert_growth(experts, chosen, rows) == pytest.approx(growth, abs=0.06)
    assert expert_growth(0, 0, rows) == 1.0
