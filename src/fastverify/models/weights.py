"""Loads a target model or an EAGLE-3 head from a Hugging Face folder, this rank's slices only.

The model lists its tensors and their places (sharding.py); this file matches that list with a folder, where a missing,
extra or misshapen tensor is an error that names it. Name variants of EAGLE-3 heads are resolved here, once.
Source: heads as SafeAILab/EAGLE, SpecForge, SGLang and vLLM write them: `midlayer.` or `layers.0.`; d2t as differences.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from fastverify.errors import ConfigError
from fastverify.model_config import Eagle3Config, read_eagle3_config, read_model_config
from fastverify.models.checkpoint import Checkpoint
from fastverify.models.eagle3 import Eagle3Head
from fastverify.models.llama import LlamaForCausalLM
from fastverify.models.sharding import Slot
from fastverify.models.vocab_parallel import VocabParallelEmbedding

if TYPE_CHECKING:
    from fastverify.comm.communicator import Communicator

_LOG = logging.getLogger(__name__)
_MOST_NAMES_SHOWN = 8


def load_target(
    path: Path,
    communicator: Communicator,
    dtype: torch.dtype = torch.float32,
    capture_layers: tuple[int, ...] = (),
) -> LlamaForCausalLM:
    """The model in `path`, frozen, in `dtype`. Every rank calls this; each reads its own part."""
    config = read_model_config(path)
    with _default_dtype(dtype):
        model = LlamaForCausalLM(config, communicator, capture_layers)
    with Checkpoint(path) as checkpoint:
        optional = {"lm_head.weight"} if config.tie_word_embeddings else set()
        optional |= {name for name in checkpoint.names if name.endswith("rotary_emb.inv_freq")}
        fill(model.slots(), checkpoint, optional)
    return model.eval().requires_grad_(False)


def load_draft(
    path: Path,
    target: LlamaForCausalLM,
    communicator: Communicator,
    dtype: torch.dtype = torch.float32,
    config: Eagle3Config | None = None,
) -> Eagle3Head:
    """The EAGLE-3 head in `path`, frozen. Every rank calls this.

    `communicator` is the target's (sharded head) or a single-rank one (a full copy on every rank). `config` is what
    `read_eagle3_config` gave when the target was built; the target must capture the layers that the head reads.
    """
    config = config or read_eagle3_config(path, target.config)
    _check_fits(config, target)
    _LOG.info("EAGLE-3 head reads streams entering layers %s: %s", config.capture_layers, config.capture_rule)
    with Checkpoint(path, _canonical_draft_name) as checkpoint, _default_dtype(dtype):
        head = Eagle3Head(config, communicator, _draft_embedding(checkpoint, config, target, communicator))
        slots = {slot.name: slot for slot in head.slots()}
        _use_target_head_if_absent(slots, checkpoint, head, target)
        if config.draft_vocab_size == config.layer.vocab_size and "d2t" not in checkpoint.names:
            del slots["d2t"]
        fill(slots.values(), checkpoint, optional={"t2d", "embed_tokens.weight"})
        _check_vocabulary_map(head, checkpoint)
    return head.eval().requires_grad_(False)


def fill(slots: Iterable[Slot], checkpoint: Checkpoint, optional: Iterable[str] = ()) -> None:
    """Copy every slot's part out of the checkpoint. `optional` names may be there without a slot.

    Raises: ConfigError naming missing and extra tensors, or one of another shape.
    """
    slots = list(slots)
    wanted = {slot.name for slot in slots}
    _refuse("lacks", wanted - checkpoint.names, checkpoint)
    _refuse("has unknown", checkpoint.names - wanted - set(optional), checkpoint)
    for slot in slots:
        shape = checkpoint.shape(slot.name)
        if shape != slot.full_shape:
            raise ConfigError(
                f"{slot.name} must have shape {list(slot.full_shape)} by config.json, got {list(shape)} in "
                f"{checkpoint.folder}. Use the config.json that belongs to these weights."
            )
        slot.destination.copy_(checkpoint.read(slot.name, slot.dim, slot.start, slot.stop))


def _refuse(what: str, names: Iterable[str], checkpoint: Checkpoint) -> None:
    ordered = sorted(names)
    if ordered:
        shown = ", ".join(ordered[:_MOST_NAMES_SHOWN])
        more = f" and {len(ordered) - _MOST_NAMES_SHOWN} more" if len(ordered) > _MOST_NAMES_SHOWN else ""
        raise ConfigError(
            f"weights must match config.json exactly, but {checkpoint.folder} {what} {len(ordered)} tensor(s): "
            f"{shown}{more}. Use the config.json that belongs to these weights."
        )


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Parameters created inside have `dtype` from the start: no second copy of the model for a conversion."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _check_fits(config: Eagle3Config, target: LlamaForCausalLM) -> None:
    rules = (
        ("target_hidden_size", config.target_hidden_size, target.config.hidden_size),
        ("vocab_size", config.layer.vocab_size, target.config.vocab_size),
        ("capture layers", list(config.capture_layers), list(target.capture_layers)),
    )
    for name, ours, theirs in rules:
        if ours != theirs:
            raise ConfigError(
                f"the EAGLE-3 head and its target must agree on {name}, got {ours} in the head and {theirs} in the "
                f"target. Build the target with the head's capture_layers, or use the head made for this target."
            )


def _canonical_draft_name(name: str) -> str:
    """The `midlayer` spelling of a head's tensor name."""
    if name.startswith("layers.0."):
        return "midlayer." + name.removeprefix("layers.0.")
    for index, legacy in enumerate(("aux_norm_low.", "aux_norm_mid.", "aux_norm_high.")):
        if name.startswith(legacy):
            return f"fc_norm.{index}." + name.removeprefix(legacy)
    return name


def _draft_embedding(
    checkpoint: Checkpoint, config: Eagle3Config, target: LlamaForCausalLM, communicator: Communicator
) -> VocabParallelEmbedding:
    """The target's embedding wherever the head may share it; a table of its own otherwise."""
    cut_alike = communicator.world_size == target.communicator.world_size
    in_file = "embed_tokens.weight" in checkpoint.names
    if cut_alike and not in_file:
        return target.embed_tokens
    own = VocabParallelEmbedding(config.layer.vocab_size, config.layer.hidden_size, communicator)
    if not in_file:
        own.weight = _gathered(target.embed_tokens.weight, target)
        return own
    fill(own.slots("embed_tokens.weight"), checkpoint, optional=checkpoint.names)
    return target.embed_tokens if cut_alike and torch.equal(own.weight, target.embed_tokens.weight) else own


def _use_target_head_if_absent(
    slots: dict[str, Slot], checkpoint: Checkpoint, head: Eagle3Head, target: LlamaForCausalLM
) -> None:
    """A head without `lm_head.weight` and with the full vocabulary predicts through the target's own output head."""
    full_vocabulary = head.config.draft_vocab_size == target.config.vocab_size
    if "lm_head.weight" in checkpoint.names or not full_vocabulary:
        return
    if head.config.layer.hidden_size != target.config.hidden_size:
        raise ConfigError(f"{checkpoint.folder} lacks lm_head.weight and is not as wide as its target's head.")
    cut_alike = head.communicator.world_size == target.communicator.world_size
    head.head.weight = target.head.weight if cut_alike else _gathered(target.head.weight, target)
    del slots["lm_head.weight"]


def _gathered(weight: torch.Tensor, target: LlamaForCausalLM) -> nn.Parameter:
    """The full vocabulary table of which every rank holds a part; one gather."""
    rows = target.communicator.all_gather(weight.detach().contiguous()).flatten(0, 1)
    return nn.Parameter(rows[: target.config.vocab_size].clone(), requires_grad=False)


def _check_vocabulary_map(head: Eagle3Head, checkpoint: Checkpoint) -> None:
    """d2t must name ascending target ids, and the same ones as t2d where the file has it."""
    ids = head.to_target_ids(torch.arange(head.config.draft_vocab_size))
    vocab_size = head.config.layer.vocab_size
    if bool((ids[1:] <= ids[:-1]).any()) or int(ids[0]) < 0 or int(ids[-1]) >= vocab_size:
        raise ConfigError(
            f"draft id + d2t[draft id] must be ascending target ids in 0..{vocab_size - 1}, got {int(ids.min())}.."
            f"{int(ids.max())} in {checkpoint.folder}. d2t holds differences, not target ids."
        )
    if "t2d" in checkpoint.names and not torch.equal(checkpoint.read("t2d").bool().nonzero()[:, 0], ids):
        raise ConfigError(f"t2d and d2t must name the same target ids, they differ in {checkpoint.folder}.")
