"""The collectives as torch operators, `torch.ops.fastverify.*`, which torch.compile and CUDA graphs keep as they are.

An operator finds its communicator by name, since a graph can hold a text but no Python object:

    name = ops.register(communicator)
    torch.ops.fastverify.all_reduce_(x, name)
    normed = torch.ops.fastverify.all_reduce_residual_rmsnorm(x, residual, weight, eps, name)  # updates residual

What an operator writes is declared in its schema, so a compiler neither drops, repeats nor reorders it against other
uses of the same tensors. Two calls that share no tensor keep the order of the traced program only because compilers
sort stably; every rank must compile the same program. There are no gradients: inputs that require them are refused.
The registry holds communicators weakly: closing and dropping one ends its name.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch

from fastverify.comm.communicator import Communicator
from fastverify.errors import ConfigError, ShapeError, UnsupportedError

_communicators: WeakValueDictionary[str, Communicator] = WeakValueDictionary()
_numbers = count()
_library = torch.library.Library("fastverify", "DEF")  # type: ignore[no-untyped-call]
# Kernels get addresses: a compiler must hand over the strides that the program had.
_TAGS = (
    torch.Tag.pt2_compliant_tag,
    getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order),
)


def register(communicator: Communicator, name: str = "") -> str:
    """A name under which the operators find `communicator` in this process; the same name if it has one already.

    Without `name` it is "comm0", "comm1", ... in order of registration, so that a compiled graph, whose cache key holds
    the name, is found again by the next process that does the same.
    Raises: ConfigError where another living communicator has the name.
    """
    for known, other in _communicators.items():
        if other is communicator and name in ("", known):
            return known
    name = name or next(free for free in (f"comm{number}" for number in _numbers) if free not in _communicators)
    if _communicators.get(name, communicator) is not communicator:
        raise ConfigError(f"a name stands for one communicator, got {name!r} again. Choose another or drop the first.")
    _communicators[name] = communicator
    return name


def find(name: str) -> Communicator:
    """The communicator of this name. Raises ConfigError where none lives."""
    communicator = _communicators.get(name)
    if communicator is None:
        known = ", ".join(sorted(_communicators)) or "none"
        raise ConfigError(
            f"an operator needs the name of a living communicator of this process, got {name!r} (known: {known}). "
            f"Call ops.register(communicator) and keep the communicator."
        )
    return communicator


def _all_reduce_(x: torch.Tensor, communicator: str) -> None:
    _check(x)
    find(communicator).all_reduce(x)


def _all_reduce(x: torch.Tensor, communicator: str) -> torch.Tensor:
    _check(x)
    return find(communicator).all_reduce_copy(x)


def _all_reduce_residual_rmsnorm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, communicator: str
) -> torch.Tensor:
    _check(x, residual, weight)
    return find(communicator).all_reduce_residual_rmsnorm_copy(x, residual, weight, eps)


def _all_gather(x: torch.Tensor, communicator: str) -> torch.Tensor:
    _check(x)
    found = find(communicator)
    # A single rank's answer is a view of `x`, which an operator may not return.
    return found.all_gather(x) if found.world_size > 1 else x.unsqueeze(0).clone()


def _fake_all_reduce_(x: torch.Tensor, communicator: str) -> None:
    _check(x)


def _fake_all_reduce(x: torch.Tensor, communicator: str) -> torch.Tensor:
    _check(x)
    return torch.empty_like(x)


def _fake_all_reduce_residual_rmsnorm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, communicator: str
) -> torch.Tensor:
    _check(x, residual, weight)
    return torch.empty_like(x)


def _fake_all_gather(x: torch.Tensor, communicator: str) -> torch.Tensor:
    _check(x)
    return x.new_empty((find(communicator).world_size, *x.shape))


def _check(*tensors: torch.Tensor) -> None:
    for tensor in tensors:
        if tensor.requires_grad and torch.is_grad_enabled():
            raise UnsupportedError(
                "the all-reduce operators have no gradient, got a tensor that requires one. Call them under "
                "torch.no_grad() or torch.inference_mode(), or detach the tensor."
            )
        if not tensor.is_contiguous():
            raise ShapeError(
                f"the all-reduce operators need contiguous tensors, got shape {tuple(tensor.shape)} with stride "
                f"{tuple(tensor.stride())}. Call .contiguous()."
            )


def _define(schema: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> None:
    name = schema.partition("(")[0]
    _library.define(schema, tags=_TAGS)  # type: ignore[no-untyped-call]
    _library.impl(name, kernel, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"fastverify::{name}", fake, lib=_library)


_define("all_reduce_(Tensor(a!) x, str communicator) -> ()", _all_reduce_, _fake_all_reduce_)
_define("all_reduce(Tensor x, str communicator) -> Tensor", _all_reduce, _fake_all_reduce)
_define(
    "all_reduce_residual_rmsnorm(Tensor x, Tensor(a!) residual, Tensor weight, float eps, str communicator) -> Tensor",
    _all_reduce_residual_rmsnorm,
    _fake_all_reduce_residual_rmsnorm,
)
_define("all_gather(Tensor x, str communicator) -> Tensor", _all_gather, _fake_all_gather)
