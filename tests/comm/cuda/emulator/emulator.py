"""Compiles the package's CUDA sources for the CPU and runs them on an emulated machine (machine.hpp).

It does not know what kernels do: a caller gives it memory, arguments and launches, and compares memory afterwards.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path

from fastverify.comm.cuda.compile import KernelSpec

HERE = Path(__file__).parent
COMPILER_OPTIONS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-w", "-D__CUDA_ARCH__=900")
MESSAGE_BYTES = 4096
_SHARED_VARIABLE = re.compile(r"__shared__ (\w+) (\w+)((?:\[[^\]]+\])*);")
_SHARED_REFERENCE = (
    r"typedef \1 \2_type\3; static const u64 \2_offset = reserve_shared(sizeof(\2_type)); "
    r"\2_type& \2 = *static_cast<\2_type*>(emulator::shared(\2_offset));"
)


class EmulatorError(AssertionError):
    """The kernels wait for ever, or touch memory that is not theirs."""


@dataclass(frozen=True)
class Edit:
    """A mistake to make in a source before it is compiled."""

    file: str
    old: str
    new: str


class Module(ctypes.Structure):
    """Must match Module in machine.hpp."""

    _fields_ = [
        ("names", ctypes.POINTER(ctypes.c_char_p)),
        ("functions", ctypes.c_void_p),
        ("num_functions", ctypes.c_uint32),
        ("call_bytes", ctypes.c_uint32),
    ]


class Emulator:
    """Compiled code in `folder`: the machine, and each source once per set of macros and mistakes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._modules: dict[tuple[KernelSpec, tuple[Edit, ...]], Module] = {}

    @staticmethod
    def find_obstacle() -> str:
        """Why it cannot run here; empty if it can."""
        return "" if shutil.which("g++") else "no g++ to compile the kernels for the CPU"

    @cached_property
    def library(self) -> ctypes.CDLL:
        """The machine itself, which the modules link to."""
        path = self._folder / "libmachine.so"
        _compile([HERE / "machine.cpp", HERE / "memory.cpp"], path)
        library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        library.emulator_open.restype = ctypes.c_void_p
        library.emulator_run.restype = ctypes.c_uint64
        return library

    def load(self, spec: KernelSpec, names: Sequence[str], edits: tuple[Edit, ...] = ()) -> Module:
        """The functions `names` of a source of the package."""
        if (spec, edits) not in self._modules:
            assert self.library
            folder = Path(tempfile.mkdtemp(dir=self._folder))
            _copy_sources(folder, edits)
            macros = [f"-D{name}={value}" for name, value in spec.defines]
            functions = " ".join(f"X({name})" for name in names)
            macros += [f'-DFV_SOURCE="{spec.source}"', f"-DFV_FUNCTIONS(X)={functions}", f"-I{folder}", f"-I{HERE}"]
            _compile([HERE / "kernels.cpp"], folder / "kernels.so", macros)
            module = ctypes.CDLL(str(folder / "kernels.so"))
            module.emulator_module.restype = ctypes.POINTER(Module)
            self._modules[spec, edits] = module.emulator_module().contents
        return self._modules[spec, edits]


class Machine:
    """Ranks of given speeds under the schedule that `seed` gives; inboxes must be claimed before they are touched."""

    def __init__(self, emulator: Emulator, speeds: Sequence[int], seed: int) -> None:
        self._library = emulator.library
        numbers = (ctypes.c_uint32 * len(speeds))(*speeds)
        self._handle = ctypes.c_void_p(self._library.emulator_open(len(speeds), ctypes.c_uint64(seed), numbers))

    def claim(self, rank: int, name: str, address: int, num_bytes: int) -> None:
        """Memory that other ranks may store to."""
        self._library.emulator_claim(
            self._handle, rank, name.encode(), ctypes.c_uint64(address), ctypes.c_uint64(num_bytes)
        )

    def launch(
        self,
        rank: int,
        module: Module,
        name: str,
        call: ctypes.Structure,
        *,
        blocks: int,
        threads: int,
        word_bytes: int,
        cluster: int = 1,
        overlap: bool = True,
    ) -> None:
        """Put a kernel on the rank's stream. Words of `word_bytes` arrive whole, lines of several do not."""
        assert ctypes.sizeof(call) == module.call_bytes, "Call differs between Python and CUDA"
        found = self._library.emulator_launch(
            *(self._handle, rank, ctypes.byref(module), name.encode(), ctypes.byref(call)),
            *(blocks, threads, cluster, word_bytes, int(overlap)),
        )
        assert found, f"no function {name}"

    def run(self, max_steps: int = 2_000_000) -> int:
        """Run what was launched to its end and return the steps that it took. Raises EmulatorError."""
        message = ctypes.create_string_buffer(MESSAGE_BYTES)
        steps = self._library.emulator_run(self._handle, ctypes.c_uint64(max_steps), message, MESSAGE_BYTES)
        if steps == 0:
            raise EmulatorError(message.value.decode())
        return steps

    def close(self) -> None:
        """Free the threads' stacks."""
        self._library.emulator_close(self._handle)


def _copy_sources(folder: Path, edits: tuple[Edit, ...]) -> None:
    """The package's sources beside the emulator's ptx.cuh, as an include needs them."""
    shutil.copy(HERE / "ptx.cuh", folder)
    for source in (files("fastverify.comm.cuda") / "sources").iterdir():
        if source.name == "ptx.cuh":
            continue
        text = source.read_text()
        for edit in edits:
            if edit.file == source.name:
                if text.count(edit.old) != 1:  # no AssertionError, which a test of mistakes would take for a success
                    raise ValueError(f"{edit.old!r} must be once in {source.name}, is {text.count(edit.old)} times")
                text = text.replace(edit.old, edit.new)
        (folder / source.name).write_text(_SHARED_VARIABLE.sub(_SHARED_REFERENCE, text))


def _compile(sources: Sequence[Path], target: Path, options: Sequence[str] = ()) -> None:
    command = ["g++", *COMPILER_OPTIONS, *options, *map(str, sources), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(f"{' '.join(command)}\n{done.stderr[:2000]}")
