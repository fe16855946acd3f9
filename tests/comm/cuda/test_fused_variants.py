"""Every variant that bench_fused_stages.py measures still fits the sources and compiles."""

import pytest

pytest.importorskip("torch")
nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
import torch  # noqa: E402

from benchmarks.fused_variants import LESS, STAMPS, VARIANTS, Variant, compile_variant  # noqa: E402
from fastverify.comm.cuda.compile import read_source  # noqa: E402
from fastverify.comm.cuda.kernels import make_spec  # noqa: E402

try:
    nvrtc.nvrtcVersion()
except RuntimeError as error:
    pytest.skip(f"no NVRTC library: {error}", allow_module_level=True)


@pytest.mark.parametrize("cluster", [1, 4])
@pytest.mark.parametrize("variant", [*VARIANTS, STAMPS], ids=lambda variant: variant.name)
def test_a_variant_compiles(variant: Variant, cluster: int) -> None:
    spec = make_spec("fused.cu", 2, torch.bfloat16, 1, cluster)
    assert b"fastverify_fused_sentinel" in compile_variant(variant, spec, "sm_90")


def test_every_edit_changes_its_file() -> None:
    for variant in [Variant("less", LESS), *VARIANTS, STAMPS]:
        for edit in variant.edits:
            assert variant.reader()(edit.file) != read_source(edit.file)
