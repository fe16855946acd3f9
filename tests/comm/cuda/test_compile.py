"""Every kernel compiles for every architecture without a GPU, and compiled kernels are kept and found again.

Needs cuda-bindings and NVRTC (`pip install 'fastverify[cuda-dev]'`); skipped where they are missing.
"""

import re
from itertools import product
from pathlib import Path

import pytest

pytest.importorskip("torch")
nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
import torch  # noqa: E402

from fastverify.comm.cuda import compile as compiler  # noqa: E402
from fastverify.comm.cuda.compile import ARCHITECTURES, KernelSpec, cache_name, compile_cubin, load_cubin  # noqa: E402
from fastverify.comm.cuda.kernels import DTYPE_NUMBERS, FUNCTIONS, make_spec  # noqa: E402
from fastverify.errors import FastverifyError  # noqa: E402

try:
    nvrtc.nvrtcVersion()
except RuntimeError as error:
    pytest.skip(f"no NVRTC library: {error}", allow_module_level=True)

ELF = b"\x7fELF"


@pytest.mark.parametrize(("architecture", "source"), list(product(ARCHITECTURES, FUNCTIONS)))
def test_every_source_compiles_for_every_architecture(architecture: str, source: str) -> None:
    has_clusters = int(architecture.removeprefix("sm_")) >= 90
    cubin = compile_cubin(make_spec(source, 2, torch.bfloat16, 1, cluster=4 if has_clusters else 1), architecture)
    assert cubin.startswith(ELF)
    assert all(name.encode() in cubin for name in FUNCTIONS[source])


@pytest.mark.parametrize(("dtype", "world_size"), [(dtype, size) for dtype in DTYPE_NUMBERS for size in (2, 8)])
def test_every_dtype_and_world_size_compiles(dtype: torch.dtype, world_size: int) -> None:
    for source in FUNCTIONS:
        assert compile_cubin(make_spec(source, world_size, dtype, 1), "sm_80").startswith(ELF)


def test_a_kernel_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_spec("all_reduce.cu", 2, torch.bfloat16, 1)
    first = load_cubin(spec, "sm_80", tmp_path)
    monkeypatch.setattr(compiler, "compile_cubin", lambda *_: pytest.fail("compiled again"))
    assert load_cubin(spec, "sm_80", tmp_path) == first
    assert len(list(tmp_path.iterdir())) == 1


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    spec = make_spec("all_reduce.cu", 2, torch.float16, 1)
    assert load_cubin(spec, "sm_80", tmp_path / "file" / "below").startswith(ELF)


def test_the_cache_tells_apart_what_compiles_differently() -> None:
    spec = make_spec("all_reduce.cu", 2, torch.bfloat16, 1)
    names = {
        cache_name(spec, "sm_80", (13, 0)),
        cache_name(spec, "sm_90", (13, 0)),
        cache_name(spec, "sm_80", (13, 1)),
        cache_name(make_spec("fused.cu", 2, torch.bfloat16, 1), "sm_80", (13, 0)),
        cache_name(make_spec("all_reduce.cu", 2, torch.float16, 1), "sm_80", (13, 0)),
    }
    assert len(names) == 5


def test_a_source_that_does_not_compile_shows_the_log() -> None:
    spec = make_spec("all_reduce.cu", 2, torch.bfloat16, 1)
    broken = KernelSpec(spec.source, tuple((name, 9 if name == "FV_WORLD" else value) for name, value in spec.defines))
    with pytest.raises(FastverifyError, match="Call has room for 8 ranks"):
        compile_cubin(broken, "sm_80")


def test_constants_shared_by_python_and_cuda_agree() -> None:
    from fastverify.comm.cuda.launch import Protocol
    from fastverify.comm.cuda.workspace import FLAG_STRIDE

    header, source = compiler.read_source("inbox.cuh"), compiler.read_source("all_reduce.cu")
    assert f"constexpr int FLAG_STRIDE = {FLAG_STRIDE};" in source
    assert f"u32 epochs[{len(Protocol)}];" in header
    numbers = {name: int(number) for name, number in re.findall(r"#define FV_(\w+) (\d)", header)}
    assert numbers == {str(dtype).removeprefix("torch.").upper(): number for dtype, number in DTYPE_NUMBERS.items()}
