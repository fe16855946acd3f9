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
    """Hooks on methods as SGLang 0.5.16 and 0.5.23 apply them; what a hook returns counts unless it is None."""

    hooks: dict[str, Any] = {}

    @classmethod
    def register(cls, target: str, hook: Any, kind: str) -> None:
        cls.hooks[target.rpartition(".")[2]] = (hook, kind)

    @classmethod
    def apply_hooks(cls, owner: type) -> None:
        for name, (hook, kind) in cls.hooks.items():
            setattr(owner, name, cls.hooked(getattr(owner, name), hook, kind))

    @staticmethod
    def hooked(original: Any, hook: Any, kind: str) -> Any:
        def after(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            changed = hook(result, *args, **kwargs)
            return result if changed is None else changed

        def around(*args: Any, **kwargs: Any) -> Any:
            return hook(original, *args, **kwargs)

        def before(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = hook(*args, **kwargs) or (args, kwargs)
            return original(*args, **kwargs)

        return {"after": after, "around": around, "before": before}[kind]


class FakeGroupCoordinator:
    """What SGLang's groups have in common, with its names and parameters; its own sums are told apart by their sign."""

    def __init__(self, cpu_group: dist.ProcessGroup, world_size: int, group_name: str | None = None) -> None:
        self.cpu_group, self.world_size = cpu_group, world_size
        self.device, self.unique_name = torch.device("cpu"), f"{group_name}:0"
        self.is_destroyed = False

    def _all_reduce_out_place(self, input_: torch.Tensor, outplace_all_reduce_method: str) -> torch.Tensor:
        return -input_

    def _all_reduce_in_place(self, input_: torch.Tensor) -> None:
        input_.neg_()

    def destroy(self) -> None:
        self.is_destroyed = True


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
    FakeHookRegistry.apply_hooks(FakeGroupCoordinator)
    cpu_group = join(rank, world_size, rendezvous)
    group = FakeGroupCoordinator(cpu_group, world_size, group_name="tp")
    other = FakeGroupCoordinator(cpu_group, world_size, group_name="attention_tp")
    x = torch.arange(6.0)
    assert torch.equal(group._all_reduce_out_place(x, "auto"), world_size * x), "as its operator calls it"
    assert torch.equal(group._all_reduce_out_place(x, outplace_all_reduce_method="ca"), world_size * x)
    assert torch.equal(x, torch.arange(6.0)), "SGLang keeps using its input"
    assert torch.equal(group._all_reduce_out_place(x.int(), "ca"), -x.int()), "no float: SGLang's own"
    assert torch.equal(other._all_reduce_out_place(x, "ca"), -x), "other groups stay SGLang's"
    group._all_reduce_in_place(x)
    assert torch.equal(x, world_size * torch.arange(6.0))
    other._all_reduce_in_place(x)
    assert torch.equal(x, -world_size * torch.arange(6.0))
    group.destroy()
    assert group.is_destroyed
    assert torch.equal(group._all_reduce_out_place(x, "ca"), -x), "after the end of the group SGLang's own"


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
