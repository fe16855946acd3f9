"""Every kernel compiles for every architecture without a GPU, and compiled kernels are kept and found again.

Needs cuda-bindings and NVRTC (`pip install 'fastverify[cuda-dev]'`); skipped where they are missing.
"""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
import torch  # noqa: E402

from fastverify.comm.cuda import compile as compiler  # noqa: E402
from fastverify.comm.cuda.compile import ARCHITECTURES, KernelSpec, cache_name, compile_cubin, load_cubin  # noqa: E402
from fastverify.comm.cuda.kernels import DTYPE_NUMBERS, FUNCTIONS, has_source, make_spec  # noqa: E402
from fastverify.errors import FastverifyError  # noqa: E402

try:
    nvrtc.nvrtcVersion()
except RuntimeError as error:
    pytest.skip(f"no NVRTC library: {error}", allow_module_level=True)

ELF = b"\x7fELF"


def compile_for(source: str, world_size: int, dtype: torch.dtype, architecture: str) -> bytes:
    has_clusters = int(architecture.removeprefix("sm_")) >= 90
    return compile_cubin(make_spec(source, world_size, dtype, 1, cluster=4 if has_clusters else 1), architecture)


# Every architecture, and among them every dtype and number of ranks: a compilation takes half a second.
SHAPES = list(zip(ARCHITECTURES, (2, 4, 8, 2, 4, 8), [*DTYPE_NUMBERS, *reversed(DTYPE_NUMBERS)], strict=True))


@pytest.mark.parametrize("source", FUNCTIONS)
@pytest.mark.parametrize(("architecture", "world_size", "dtype"), SHAPES)
def test_every_source_compiles(architecture: str, world_size: int, dtype: torch.dtype, source: str) -> None:
    if not has_source(source, world_size):
        with pytest.raises(FastverifyError, match="islands are halves of 4 or 8 ranks"):
            compile_for(source, world_size, dtype, "sm_90")
        world_size = 4
    cubin = compile_for(source, world_size, dtype, architecture)
    assert cubin.startswith(ELF)
    assert all(name.encode() in cubin for name in FUNCTIONS[source])


def test_a_kernel_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_spec("all_reduce.cu", 2, torch.bfloat16, 1)
    first = load_cubin(spec, "sm_80", tmp_path)
    monkeypatch.setattr(compiler, "compile_cubin", lambda *_: pytest.fail("compiled again"))
    assert load_cubin(spec, "sm_80", tmp_path) == first
    assert len(list(tmp_path.iterdir())) == 1


def test_a_kept_file_that_is_no_kernel_is_compiled_anew(tmp_path: Path) -> None:
    spec = make_spec("all_reduce.cu", 2, torch.bfloat16, 1)
    cubin = load_cubin(spec, "sm_80", tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"")
    assert load_cubin(spec, "sm_80", tmp_path) == cubin
    assert path.read_bytes() == cubin


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
    from fastverify.comm.cuda.launch import LINE_BYTES
    from fastverify.comm.cuda.workspace import FLAG_STRIDE

    inbox, units = compiler.read_source("inbox.cuh"), compiler.read_source("units.cuh")
    assert f"constexpr u64 FLAG_STRIDE = {FLAG_STRIDE};" in inbox
    assert f"constexpr u64 LINE_BYTES = {LINE_BYTES};" in inbox
    numbers = {name: int(number) for name, number in re.findall(r"#define FV_(\w+) (\d)", units)}
    assert numbers == {str(dtype).removeprefix("torch.").upper(): number for dtype, number in DTYPE_NUMBERS.items()}
