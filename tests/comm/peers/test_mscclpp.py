"""The adapter over a fake of MSCCL++'s documented Python API. Nothing here runs MSCCL++."""

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from fastverify.comm.peers import mscclpp
from fastverify.comm.peers.mscclpp import MscclppBackend, choose_algorithm, find_support
from fastverify.errors import FastverifyError, UnsupportedError
from tests.comm.fake_gpus import FAKE_STREAM, FakeFacts, fake_group, put_gpu_calls_aside, set_facts

SUM = object()


class FakeAlgorithm:
    """`execute` of mscclpp._core.algorithm.Algorithm; records instead of summing."""

    def __init__(self, name: str, collective: str = "allreduce") -> None:
        self.name, self.collective = name, collective
        self.calls: list[dict[str, Any]] = []
        self.result = 0

    def execute(
        self,
        comm: Any,
        input_buffer: int,
        output_buffer: int,
        input_size: int,
        output_size: int,
        dtype: Any,
        op: Any = None,
        stream: int = 0,
        executor: Any = None,
        nblocks: int = 0,
        nthreads_per_block: int = 0,
        symmetric_memory: bool = False,
        extras: dict[str, int] | None = None,
    ) -> int:
        self.calls.append(dict(locals()))
        return self.result


ALGORITHMS = [
    FakeAlgorithm("default_allgather_fullmesh", "allgather"),
    FakeAlgorithm("default_allreduce_nvls_packet"),
    FakeAlgorithm("default_allreduce_packet"),
    FakeAlgorithm("default_allreduce_allpair_packet"),
]


class OldBuilder:
    def build_default_algorithms(
        self, scratch_buffer: int, scratch_buffer_size: int, flag_buffer: int, flag_buffer_size: int, rank: int
    ) -> list[FakeAlgorithm]:
        assert flag_buffer_size == 512
        return ALGORITHMS


class NewBuilder:
    def build_default_algorithms(self, scratch_buffer: int, scratch_buffer_size: int, rank: int) -> list[FakeAlgorithm]:
        return ALGORITHMS


class FakeRawGpuBuffer:
    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes

    def to_dlpack(self, data_type: str) -> torch.Tensor:
        assert data_type == "torch.float16"
        return torch.empty(self.num_bytes // 2, dtype=torch.float16)


def install(monkeypatch: pytest.MonkeyPatch, builder: type, folder: Path) -> None:
    package, ext, utils = (ModuleType(name) for name in ("mscclpp", "mscclpp.ext", "mscclpp.utils"))
    package.CommGroup = lambda torch_group: SimpleNamespace(communicator="comm")  # type: ignore[attr-defined]
    package.RawGpuBuffer = FakeRawGpuBuffer  # type: ignore[attr-defined]
    package.ReduceOp = SimpleNamespace(SUM=SUM)  # type: ignore[attr-defined]
    package.ext, package.utils = ext, utils  # type: ignore[attr-defined]
    ext.AlgorithmCollectionBuilder = builder  # type: ignore[attr-defined]
    utils.torch_dtype_to_mscclpp_dtype = str  # type: ignore[attr-defined]
    for module in (package, ext, utils):
        module.__spec__ = ModuleSpec(module.__name__, None, is_package=True)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    assert package.__spec__ is not None
    package.__spec__.submodule_search_locations = [str(folder)]
    monkeypatch.setattr(mscclpp, "open_torch_group", lambda group, library: object())


@pytest.mark.parametrize("builder", [OldBuilder, NewBuilder])
def test_a_call_hands_over_pointers_sizes_and_the_stream(
    builder: type, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put_gpu_calls_aside(monkeypatch)
    install(monkeypatch, builder, tmp_path)
    backend = MscclppBackend(fake_group(device="cpu"))
    algorithm = backend._algorithm
    assert algorithm.name == "default_allreduce_allpair_packet"
    algorithm.calls.clear()
    x, out = torch.zeros(64, dtype=torch.bfloat16), torch.zeros(64, dtype=torch.bfloat16)
    backend.all_reduce(x)
    backend.all_reduce_out(x, out)
    first, second = algorithm.calls
    assert (first["input_buffer"], first["output_buffer"]) == (x.data_ptr(), x.data_ptr())
    assert (second["input_buffer"], second["output_buffer"]) == (x.data_ptr(), out.data_ptr())
    assert (first["input_size"], first["dtype"], first["op"]) == (128, "torch.bfloat16", SUM)
    assert first["stream"] == FAKE_STREAM.cuda_stream
    algorithm.result = 3
    with pytest.raises(FastverifyError, match="result 3"):
        backend.all_reduce(x)
    algorithm.result = 0
    backend.close()


def test_algorithms_that_need_multicast_are_not_taken() -> None:
    assert choose_algorithm(ALGORITHMS[:3]).name == "default_allreduce_packet"
    with pytest.raises(UnsupportedError, match="nvls_packet"):
        choose_algorithm(ALGORITHMS[:2])


def test_refusals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_facts(monkeypatch, FakeFacts())
    assert "built from its source" in find_support(fake_group()).reason
    install(monkeypatch, NewBuilder, tmp_path)
    assert "0.8" in find_support(fake_group()).reason
    (tmp_path / "ext").mkdir()
    assert find_support(fake_group()).ok
    set_facts(monkeypatch, FakeFacts(atomics=False))
    assert "NVLink" in find_support(fake_group()).reason
