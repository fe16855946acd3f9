"""Embedding and output head cut over the ranks by vocabulary, and what is asked of their logits.

The arg-max and the top k exchange a few numbers per row instead of gathering V logits. Rank order is id order, so
ties go to the lowest id, as in an unsharded arg-max. Ids travel as float32 beside the values, exact below 2^24.
T = packed token rows, D = hidden size, V = vocabulary, R = ranks, k = how many best.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F

from fastverify.errors import UnsupportedError
from fastverify.models import kernels
from fastverify.models.linear import Linear
from fastverify.models.sharding import Slots, local_size, local_span, part

if TYPE_CHECKING:
    from fastverify.comm.communicator import Communicator

_LARGEST_VOCAB = 2**24


class VocabParallelEmbedding(nn.Module):
    """Token embedding: each rank knows its own ids and answers zero for the others; the sum is the embedding."""

    def __init__(self, vocab_size: int, hidden_size: int, communicator: Communicator) -> None:
        super().__init__()
        self.vocab_size, self.is_full = vocab_size, communicator.world_size == 1
        self.span = local_span(vocab_size, communicator.rank, communicator.world_size)
        self.weight = nn.Parameter(torch.zeros(local_size(vocab_size, communicator.world_size), hidden_size))

    def forward(self, token_ids_T: torch.Tensor) -> torch.Tensor:
        """This rank's partial sum [T, D]."""
        native = kernels.kernels_for(self.weight)
        if native is not None:
            return kernels.look_up(native, self.weight, self.span.start, token_ids_T)
        if self.is_full:
            return F.embedding(token_ids_T, self.weight)
        local_ids_T = token_ids_T - self.span.start
        foreign_T = (local_ids_T < 0) | (local_ids_T >= self.span.size)
        partial_TD = F.embedding(local_ids_T.masked_fill(foreign_T, 0), self.weight)
        return partial_TD.masked_fill(foreign_T[:, None], 0.0)

    def slots(self, name: str) -> Slots:
        """Place of this rank's rows of the tensor `name`."""
        yield part(name, self.weight, 0, self.span, self.vocab_size)


class VocabParallelHead(Linear):
    """Projection onto the vocabulary, V/R rows per rank. `weight` may be the embedding's (tied)."""

    def __init__(
        self, vocab_size: int, hidden_size: int, communicator: Communicator, tied: nn.Parameter | None = None
    ) -> None:
        if vocab_size > _LARGEST_VOCAB:
            raise UnsupportedError(f"a vocabulary has at most {_LARGEST_VOCAB} tokens here, got {vocab_size}.")
        super().__init__(hidden_size, local_size(vocab_size, communicator.world_size), weight=tied)
        self.communicator = communicator
        self.vocab_size = vocab_size
        self.span = local_span(vocab_size, communicator.rank, communicator.world_size)

    def local_logits(self, hidden_TD: torch.Tensor) -> torch.Tensor:
        """Logits [T, V/R] of this rank's ids, -inf where padding stands in for an id."""
        logits = self.forward(hidden_TD)
        if self.span.size < self.weight.shape[0]:
            logits[:, self.span.size :] = -torch.inf
        return logits

    def logits(self, hidden_TD: torch.Tensor) -> torch.Tensor:
        """Logits [T, V] on every rank; one gather."""
        local = self.local_logits(hidden_TD)
        if self.communicator.world_size == 1:
            return local
        gathered_RTV = self.communicator.all_gather(local)
        return gathered_RTV.transpose(0, 1).reshape(local.shape[0], -1)[:, : self.vocab_size]

    def greedy(self, hidden_TD: torch.Tensor) -> torch.Tensor:
        """Id [T] of the largest logit, the lowest of equals; gathers two numbers per row and rank."""
        logits = self.local_logits(hidden_TD)
        native = kernels.kernels_for(logits)
        if native is not None:
            return kernels.choose_best(
                native, self.communicator.all_gather(kernels.arg_max(native, logits, self.span.start))
            )
        values_T, ids_T = logits.max(-1)
        best_T2 = torch.stack((values_T.float(), (ids_T + self.span.start).float()), -1)
        values_RT, ids_RT = self.communicator.all_gather(best_T2).unbind(-1)
        return ids_RT.gather(0, values_RT.argmax(0, keepdim=True))[0].long()

    def top_k(self, hidden_TD: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and ids [T, k] of the k best, best first; gathers 2k + 1 numbers per row and rank."""
        logits = self.local_logits(hidden_TD).float()
        values, ids = logits.topk(min(k, logits.shape[-1]), -1)
        log_sum = logits.logsumexp(-1, keepdim=True)
        if self.communicator.world_size > 1:
            values, ids, log_sum = self._merged(values, ids + self.span.start, log_sum)
            values, order = values.topk(min(k, self.vocab_size), -1)
            ids = ids.gather(-1, order)
        return values - log_sum, ids

    def _merged(
        self, values: torch.Tensor, ids: torch.Tensor, log_sum: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Every rank's candidates side by side, and the logarithm of the whole sum."""
        width = values.shape[-1]
        gathered = self.communicator.all_gather(torch.cat((values, ids.float(), log_sum), -1)).transpose(0, 1)
        all_values = gathered[..., :width].flatten(1)
        all_ids = gathered[..., width : 2 * width].flatten(1).long()
        return all_values, all_ids, gathered[..., -1].logsumexp(-1, keepdim=True)

    def slots(self, name: str) -> Slots:
        """Place of this rank's rows of the tensor `name`."""
        yield part(name, self.weight, 0, self.span, self.vocab_size)
