"""The plug-ins against stand-ins of both servers' group classes, with real ranks and real collectives on the CPU."""

import logging
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fastverify.errors import EnvironmentMissingError
from fastverify.plugins import server_group, sglang, vllm
from fastverify.plugins.server_group import ServerGroup, is_asked_for
from tests.ranks import run_ranks

pytestmark = pytest.mark.ranks


class FakeDeviceCommunicator:
    """What vLLM's device communicators have in common; its own sum is told apart by its sign."""

    def __init__(self, cpu_group: dist.ProcessGroup, device: torch.device, unique_name: str) -> None:
        self.cpu_group, self.device, self.unique_name = cpu_group, device, unique_name
        self.world_size = cpu_group.size()
        self.is_destroyed = False

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        return -input_

    def destroy(self) -> None:
        self.is_destroyed = True


class FakePlatform:
    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return f"{__name__}.FakeDeviceCommunicator"


class FakeHookRegistry:
    hooks: dict[str, Any] = {}

    @classmethod
    def register(cls, target: str, hook: Any, kind: str) -> None:
        cls.hooks[target.rpartition(".")[2]] = (hook, kind)


def install_fakes() -> None:
    modules: dict[str, dict[str, Any]] = {
        "vllm": {},
        "vllm.platforms": {"current_platform": FakePlatform()},
        "vllm.logger": {"init_logger": logging.getLogger},
        "sglang.srt.plugins.hook_registry": {
            "HookRegistry": FakeHookRegistry,
            "HookType": SimpleNamespace(AFTER="after", AROUND="around", BEFORE="before"),
        },
        __name__: vars(sys.modules[FakePlatform.__module__]),
    }
    for name, attributes in modules.items():
        module = ModuleType(name)
        vars(module).update(attributes)
        sys.modules[name] = module


def join(rank: int, world_size: int, rendezvous: str) -> dist.ProcessGroup:
    dist.init_process_group("gloo", rank=rank, world_size=world_size, init_method=rendezvous)
    group: dist.ProcessGroup = dist.new_group(list(range(world_size)), backend="gloo")
    return group


def check_vllm(rank: int, world_size: int, rendezvous: str) -> None:
    install_fakes()
    vllm.register()
    cpu_group = join(rank, world_size, rendezvous)
    module, _, name = FakePlatform.get_device_communicator_cls().rpartition(".")
    communicator_class = getattr(sys.modules[module], name)
    tensor_parallel = communicator_class(cpu_group, torch.device("cpu"), "tp:0")
    other = communicator_class(cpu_group, torch.device("cpu"), "pp:0")
    x = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(tensor_parallel.all_reduce(x), world_size * x)
    assert torch.equal(x, torch.arange(6.0).reshape(2, 3)), "vLLM keeps using its input"
    assert torch.equal(tensor_parallel.all_reduce(x.T), -x.T), "not contiguous: vLLM's own"
    assert torch.equal(tensor_parallel.all_reduce(x.int()), -x.int()), "no float: vLLM's own"
    assert torch.equal(other.all_reduce(x), -x), "other groups stay vLLM's"
    large = torch.ones(server_group.MAX_BYTES // x.itemsize + 1)
    assert torch.equal(tensor_parallel.all_reduce(large), -large), "larger than what is measured: vLLM's own"
    tensor_parallel.destroy()
    assert tensor_parallel.is_destroyed
    assert torch.equal(tensor_parallel.all_reduce(x), -x)


def check_sglang(rank: int, world_size: int, rendezvous: str) -> None:
    install_fakes()
    sglang.register()
    hooks = FakeHookRegistry.hooks
    assert {name: kind for name, (_, kind) in hooks.items()} == {
        "__init__": "after",
        "_all_reduce_out_place": "around",
        "_all_reduce_in_place": "around",
        "destroy": "before",
    }
    coordinator = SimpleNamespace(
        cpu_group=join(rank, world_size, rendezvous), device="cpu", unique_name="tp:0", world_size=world_size
    )
    hooks["__init__"][0](None, coordinator)
    x = torch.arange(6.0)
    out_of_place, in_place = hooks["_all_reduce_out_place"][0], hooks["_all_reduce_in_place"][0]

    def original(_: Any, input_: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return input_.neg_()

    assert torch.equal(
        out_of_place(original, coordinator, x, outplace_all_reduce_method="ca"), world_size * torch.arange(6.0)
    )
    in_place(original, coordinator, x)
    assert torch.equal(x, world_size * torch.arange(6.0))
    hooks["destroy"][0](coordinator)
    in_place(original, coordinator, x)
    assert torch.equal(x, -world_size * torch.arange(6.0)), "after the end of the group SGLang's own"


def check_failure_on_one_rank(rank: int, world_size: int, rendezvous: str) -> None:
    cpu_group = join(rank, world_size, rendezvous)
    create = server_group.create_communicator

    def fail_on_rank_1(group: Any, backend: str) -> Any:
        communicator = create(group, backend)
        if group.rank == 1:
            raise EnvironmentMissingError("no such kernel")
        return communicator

    messages: list[str] = []
    log = SimpleNamespace(
        warning=lambda text, *args: messages.append(text % args), info=lambda text, *args: messages.append(text % args)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_group, "create_communicator", fail_on_rank_1)
        group = ServerGroup(cpu_group, torch.device("cpu"), "tp:0", log)  # type: ignore[arg-type]
    assert group.all_reduce(torch.ones(3)) is None
    assert not group.all_reduce_(torch.ones(3))
    assert len(messages) == 1
    assert "rank 1" in messages[0]
    assert "no such kernel" in messages[0]


def test_vllm_asks_us_first() -> None:
    run_ranks(run_with_plugins, 2, "check_vllm")


def test_sglang_asks_us_first() -> None:
    run_ranks(run_with_plugins, 2, "check_sglang")


def test_one_rank_that_fails_leaves_the_server_as_it_was() -> None:
    run_ranks(check_failure_on_one_rank, 2)


def run_with_plugins(rank: int, world_size: int, rendezvous: str, check: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_PLUGINS", "other, fastverify")
        patch.setenv("SGLANG_PLUGINS", "fastverify")
        globals()[check](rank, world_size, rendezvous)


@pytest.mark.parametrize("value", [None, "", "other", "fastverify2"])
def test_being_installed_alone_changes_no_server(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("VLLM_PLUGINS", "SGLANG_PLUGINS"):
        monkeypatch.delenv(variable, raising=False)
        if value is not None:
            monkeypatch.setenv(variable, value)
        assert not is_asked_for(variable)
    vllm.register()
    sglang.register()
    assert "vllm" not in sys.modules
    assert "sglang" not in sys.modules
