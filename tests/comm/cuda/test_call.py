"""The structures that Python and the kernels share: every size and offset that ctypes works out holds in C++."""

import ctypes
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch  # noqa: E402

from fastverify.comm.cuda import call  # noqa: E402
from fastverify.comm.cuda.launch import Algorithm, Launch, Protocol  # noqa: E402
from fastverify.comm.cuda.workspace import Layout, Phase  # noqa: E402

EMULATOR = Path(__file__).parent / "emulator"
STRUCTURES = {
    "Region": call.RegionFields,
    "Call": call.Call,
    "Control": call.ControlFields,
    "Status": call.StatusFields,
}


def compile_with(checks: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    shutil.copy(EMULATOR / "ptx.cuh", folder)
    (folder / "call.cuh").write_text((files("fastverify.comm.cuda") / "sources" / "call.cuh").read_text())
    text = "\n".join(['#include "cuda.hpp"', '#include "call.cuh"', *checks])
    macros = [f"-DFV_{name}={value}" for name, value in {"WORLD": 2, "UNITS": 1, "CLUSTER": 1, "DTYPE": 0}.items()]
    command = ["g++", "-std=c++17", "-fsyntax-only", "-w", *macros, f"-I{EMULATOR}", f"-I{folder}", "-xc++", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_sizes_and_offsets_are_those_of_the_kernels(tmp_path: Path) -> None:
    checks = [f"static_assert(sizeof({name}) == {ctypes.sizeof(fields)});" for name, fields in STRUCTURES.items()]
    checks += [
        f"static_assert(__builtin_offsetof({name}, {field}) == {getattr(fields, field).offset});"
        for name, fields in STRUCTURES.items()
        for field, *_ in fields._fields_
    ]
    checks += [f"static_assert({outcome.name} == {outcome.value});" for outcome in call.Outcome]
    checks += [f"static_assert({phase.name} == {phase.value});" for phase in Phase]
    done = compile_with(checks, tmp_path)
    assert done.returncode == 0, done.stderr[:2000]
    assert compile_with(["static_assert(__builtin_offsetof(Call, rank) == 4);"], tmp_path).returncode != 0


def test_a_call_points_to_the_regions_of_its_protocol() -> None:
    layout = Layout(4, 1 << 16)
    launch = Launch(Protocol.SENTINEL, 1, 32, pause_ns=7, algorithm=Algorithm.TWO_SHOT)
    made = call.make_call(layout, [10, 20, 30, 40], 2, launch, 1000, 2)
    assert list(made.inboxes) == [10, 20, 30, 40, 0, 0, 0, 0]
    assert (made.rank, made.num_bytes, made.pause_ns) == (2, 1000, 7)
    for phase in Phase:
        assert made.regions[phase].offset == layout.regions[Protocol.SENTINEL, phase].offset
    # 63 units of 16 bytes in four parts: 16 lines, which 256 bytes hold.
    assert [region.area_bytes for region in made.regions] == [256, 256, 0]


def test_what_a_kernel_wrote_is_read_once_its_code_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *size, pin_memory, dtype: zeros(*size, dtype=dtype))
    words = call.StatusWords()
    written = call.StatusFields.from_address(words.address)
    written.peer, written.epoch, written.unit = 3, 2**32 - 1, 77
    assert words.read() is None
    written.code = 1
    assert words.read() == call.RankStatus(call.Outcome.LATE, 3, 2**32 - 1, 77)
    assert written.abort == 0
    words.abort()
    assert written.abort == 1
