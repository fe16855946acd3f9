"""A profiler shows our kernels by their names, so `fastverify profile` must know every one of them."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")

from fastverify.comm.cuda.kernels import FUNCTIONS  # noqa: E402
from fastverify.trace.kind_names import Backend, CollectiveOp, KernelClass  # noqa: E402
from fastverify.trace.kinds import classify  # noqa: E402

# Kernels that only measure: no collective of a model.
TOOLS = ("fastverify_empty", "fastverify_link")
NAMES = [name for names in FUNCTIONS.values() for name in names]


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith(TOOLS)])
def test_a_collective_is_known(name: str) -> None:
    kind = classify(name)
    assert kind.backend is Backend.FASTVERIFY
    assert kind.op in (CollectiveOp.ALL_REDUCE, CollectiveOp.ALL_GATHER)
    assert kind.algorithm
    assert kind.protocol in name
    assert kind.is_fused == ("fused" in name)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(TOOLS)])
def test_a_kernel_that_measures_is_no_collective(name: str) -> None:
    assert classify(name).kernel_class is KernelClass.OTHER
