"""SGLang plug-in: its tensor-parallel group asks our all-reduce first. Start the server with SGLANG_PLUGINS=fastverify.

SGLang calls `register` in every process before it makes its groups, and applies the hooks. Both ways in which a group
sums (into a new tensor, which it takes inside CUDA graphs, and in place) come to us first; what we decline goes on to
the way that SGLang had chosen. torch.compile sees none of it: both ways run inside SGLang's opaque operators.
What does not come by here: tensors on the CPU, --enable-symm-mem outside torch.compile, FlashInfer's all-reduce, sums
fused with a norm, and groups of data-parallel attention. Written against SGLang 0.5.16 and 0.5.23.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from fastverify.plugins.server_group import ServerGroup, is_asked_for

VARIABLE = "SGLANG_PLUGINS"
_GROUP = "sglang.srt.distributed.parallel_state.GroupCoordinator"

logger = logging.getLogger(__name__)


def register() -> None:
    """Entry point `sglang.srt.plugins`. Does nothing unless SGLANG_PLUGINS names fastverify."""
    if not is_asked_for(VARIABLE):
        return
    hooks = import_module("sglang.srt.plugins.hook_registry")
    kind = hooks.HookType
    hooks.HookRegistry.register(f"{_GROUP}.__init__", open_group, kind.AFTER)
    hooks.HookRegistry.register(f"{_GROUP}._all_reduce_out_place", all_reduce_out_of_place, kind.AROUND)
    hooks.HookRegistry.register(f"{_GROUP}._all_reduce_in_place", all_reduce_in_place, kind.AROUND)
    hooks.HookRegistry.register(f"{_GROUP}.destroy", close_group, kind.BEFORE)


def open_group(_: None, coordinator: Any, *args: Any, **kwargs: Any) -> None:
    """After SGLang has made a group: give the tensor-parallel one ours."""
    coordinator.fastverify = None
    if coordinator.unique_name.split(":")[0] == "tp" and coordinator.world_size > 1:
        coordinator.fastverify = ServerGroup(
            coordinator.cpu_group, torch.device(coordinator.device), coordinator.unique_name, logger
        )


def all_reduce_out_of_place(
    original: Callable[..., torch.Tensor], coordinator: Any, input_: torch.Tensor, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """A new tensor from us, or from the method that SGLang chose."""
    summed = _sum(coordinator, input_)
    return original(coordinator, input_, *args, **kwargs) if summed is None else summed


def all_reduce_in_place(original: Callable[..., None], coordinator: Any, input_: torch.Tensor) -> None:
    """The sum written over `input_`."""
    group: ServerGroup | None = getattr(coordinator, "fastverify", None)
    if group is None or not group.all_reduce_(input_):
        original(coordinator, input_)


def close_group(coordinator: Any, *args: Any, **kwargs: Any) -> None:
    """Before SGLang ends a group."""
    group: ServerGroup | None = getattr(coordinator, "fastverify", None)
    if group is not None:
        group.close()


def _sum(coordinator: Any, input_: torch.Tensor) -> torch.Tensor | None:
    group: ServerGroup | None = getattr(coordinator, "fastverify", None)
    return None if group is None else group.all_reduce(input_)
