"""Batches of token windows from one long stream, the same for the same seed and batch number.

The stream lives on the device as int32; a batch is a gather, so no loader processes are needed. Windows run across
document borders: the end-of-text token tells the model.
"""

from __future__ import annotations

from pathlib import Path

import torch

from fastverify.errors import ConfigError
from fastverify.training.corpus.tokens import read_tokens


class TokenStream:
    """Windows of a token stream in a new random order each epoch.

    `is_shifted`: every epoch cuts at other places; off for a stream whose windows are sequences of their own.
    """

    def __init__(
        self, token_ids: torch.Tensor, window: int, batch_size: int, seed: int, is_shifted: bool = True
    ) -> None:
        self._token_ids, self._window, self._batch_size, self._seed = token_ids, window, batch_size, seed
        self._is_shifted = is_shifted
        # One window is left over for the shift of the epoch.
        self.batches_per_epoch = (len(token_ids) // window - 1) // batch_size
        if self.batches_per_epoch < 1:
            raise ConfigError(
                f"the token stream must hold {(batch_size + 1) * window} tokens for one batch of {batch_size} windows "
                f"of {window}, got {len(token_ids)}. Use more text, a smaller batch or shorter windows."
            )
        self._epoch = -1
        self._starts = torch.empty(0)

    def batch(self, number: int) -> torch.Tensor:
        """Batch `number` of the run, int64 [batch_size, window]."""
        epoch, index = divmod(number, self.batches_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._starts = epoch, self._epoch_starts(epoch)
        starts = self._starts[index * self._batch_size : (index + 1) * self._batch_size]
        columns = torch.arange(self._window, device=starts.device)
        return self._token_ids[starts[:, None] + columns].long()

    def _epoch_starts(self, epoch: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self._seed * 100_003 + epoch)
        shift = int(torch.randint(self._window, (), generator=generator)) if self._is_shifted else 0
        order = torch.randperm(len(self._token_ids) // self._window - 1, generator=generator)
        return (order * self._window + shift).to(self._token_ids.device)


def load_token_file(path: Path, device: torch.device) -> torch.Tensor:
    """The tokens of one file as int32 on `device`."""
    if not path.is_file():
        raise ConfigError(
            f"a corpus folder holds {path.name}, found none in {path.parent}. Run scripts/build_corpus.py."
        )
    return torch.from_numpy(read_tokens(path).astype("int32")).to(device)
