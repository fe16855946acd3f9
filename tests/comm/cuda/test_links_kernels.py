"""The kernels of links.cu: compiled for every architecture, and run on a CPU, where a side of ping-pong is a thread."""

import ctypes
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

pytest.importorskip("torch")
from fastverify.comm.cuda.compile import ARCHITECTURES, compile_cubin  # noqa: E402
from fastverify.comm.cuda.link_gpus import (  # noqa: E402
    FUNCTIONS,
    MAX_ROUNDS,
    SPEC,
    _PingCall,
    _PingResult,
    _StreamCall,
)

DONE, GAVE_UP = 1, 2
READ_TIMER = 'asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));'


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_kernels_compile_for_every_architecture(architecture: str) -> None:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
    try:
        nvrtc.nvrtcVersion()
    except RuntimeError as error:
        pytest.skip(f"no NVRTC library: {error}")
    cubin = compile_cubin(SPEC, architecture)
    assert all(name.encode() in cubin for name in FUNCTIONS)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if shutil.which("g++") is None:
        pytest.skip("no g++ to compile the kernels for the CPU")
    folder = tmp_path_factory.mktemp("links")
    source = folder / "links.cu"
    text = (files("fastverify.comm.cuda") / "sources" / "links.cu").read_text()
    for old, new in (('#include "ptx.cuh"\n', ""), (READ_TIMER, "ns = clock64();")):
        assert text.count(old) == 1
        text = text.replace(old, new)
    source.write_text(text)
    target = folder / "links.so"
    options = ["-std=c++17", "-O1", "-fPIC", "-shared", "-pthread", "-w", f'-DFV_SOURCE="{source}"']
    subprocess.run(["g++", *options, str(Path(__file__).with_name("links_on_cpu.cpp")), "-o", str(target)], check=True)
    return ctypes.CDLL(str(target))


def ping_call(own: int, peer: int, result: _PingResult, **fields: int) -> _PingCall:
    call = _PingCall(own_flag=own, peer_flag=peer, result=ctypes.addressof(result))
    for name, value in {"spin_bound": 10**10, "rounds": 300, **fields}.items():
        setattr(call, name, value)
    return call


@pytest.mark.parametrize("release", [0, 1])
def test_flags_go_to_and_fro(kernels: ctypes.CDLL, release: int) -> None:
    flags = (ctypes.c_uint32 * 128)()
    first, second = ctypes.addressof(flags), ctypes.addressof(flags) + 256
    results = (_PingResult(), _PingResult())
    starter = ping_call(first, second, results[0], starts=1, release=release)
    answerer = ping_call(second, first, results[1], release=release)
    kernels.run_ping_pong(ctypes.byref(starter), ctypes.byref(answerer))
    for result in results:
        assert (result.status, result.rounds_done) == (DONE, 300)
        assert 0 < sum(result.trip_cycles[:300]) <= result.total_cycles
        assert result.total_ns == pytest.approx(result.total_cycles, rel=0.2)
    assert flags[0] == flags[64] == 300


def test_a_side_that_hears_nothing_gives_up(kernels: ctypes.CDLL) -> None:
    flags = (ctypes.c_uint32 * 128)()
    first, second = ctypes.addressof(flags), ctypes.addressof(flags) + 256
    nowhere = (ctypes.c_uint32 * 4)()
    results = (_PingResult(), _PingResult())
    starter = ping_call(first, ctypes.addressof(nowhere), results[0], starts=1, spin_bound=10**7)
    answerer = ping_call(second, first, results[1], spin_bound=10**7)
    kernels.run_ping_pong(ctypes.byref(starter), ctypes.byref(answerer))
    assert [(result.status, result.rounds_done) for result in results] == [(GAVE_UP, 0), (GAVE_UP, 0)]


@pytest.mark.parametrize("num_targets", [1, 3, 7])
def test_stores_cover_every_line_of_every_target_and_nothing_else(kernels: ctypes.CDLL, num_targets: int) -> None:
    lines = 1000
    memory = [(ctypes.c_uint32 * (4 * lines + 8))() for _ in range(num_targets)]
    call = stream_call(memory, lines, repeats=3)
    kernels.run_stream(0, ctypes.byref(call), num_targets * 2, 32)
    for words in memory:
        assert set(words[: 4 * lines]) == {2}, "the last repeat wrote its number"
        assert set(words[4 * lines :]) == {0}


def test_loads_see_every_line_of_every_target(kernels: ctypes.CDLL) -> None:
    """The kernel reports only lines with unequal words, so one such line anywhere must show."""
    lines = 500
    for target in range(2):
        for place in (0, 137, lines - 1):
            memory = [(ctypes.c_uint32 * (4 * lines + 8))() for _ in range(2)]
            sink = ctypes.c_uint32(0)
            call = stream_call(memory, lines, repeats=1)
            call.sink = ctypes.addressof(sink)
            kernels.run_stream(1, ctypes.byref(call), 4, 32)
            assert sink.value == 0
            memory[target][4 * place + 3] = 5
            kernels.run_stream(1, ctypes.byref(call), 4, 32)
            assert sink.value == 5


def stream_call(memory: list[ctypes.Array[ctypes.c_uint32]], lines: int, repeats: int) -> _StreamCall:
    call = _StreamCall(lines_per_target=lines, num_targets=len(memory), repeats=repeats)
    for place, words in enumerate(memory):
        call.targets[place] = ctypes.addressof(words)
    return call


def test_constants_shared_by_python_and_cuda_agree() -> None:
    text = (files("fastverify.comm.cuda") / "sources" / "links.cu").read_text()
    assert f"constexpr u32 MAX_ROUNDS = {MAX_ROUNDS};" in text
    assert f"constexpr u32 DONE = {DONE};" in text
