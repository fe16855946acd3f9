"""Named tensors of a model folder, read in slices so that a rank touches only its own part.

Reads `model.safetensors`, sharded safetensors with their index, and, where a folder has nothing else,
`pytorch_model.bin` (one file, tensors only: no code in it is run). It knows nothing about models.
Source: the safetensors format, and the index file that transformers writes.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open

from fastverify.errors import ConfigError

_INDEX = "model.safetensors.index.json"


class Checkpoint:
    """An open folder of weights; a context manager. `rename` maps a name in the file to the one asked for."""

    def __init__(self, folder: Path, rename: Callable[[str], str] = str) -> None:
        self.folder = folder
        self._files = ExitStack()
        self._sources: dict[str, tuple[str, Any]] = {}
        for stored_name, source in self._open().items():
            self._sources[rename(stored_name)] = (stored_name, source)

    @property
    def names(self) -> frozenset[str]:
        """Names of all tensors, after renaming."""
        return frozenset(self._sources)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of the whole tensor."""
        stored_name, source = self._sources[name]
        if isinstance(source, torch.Tensor):
            return tuple(source.shape)
        return tuple(source.get_slice(stored_name).get_shape())

    def read(self, name: str, dim: int | None = None, start: int = 0, stop: int = 0) -> torch.Tensor:
        """The tensor, or its part `start:stop` along `dim`."""
        stored_name, source = self._sources[name]
        if isinstance(source, torch.Tensor):
            return source if dim is None else source.narrow(dim, start, stop - start)
        if dim is None:
            whole: torch.Tensor = source.get_tensor(stored_name)
            return whole
        part: torch.Tensor = source.get_slice(stored_name)[(*[slice(None)] * dim, slice(start, stop))]
        return part

    def close(self) -> None:
        """Unmap the files."""
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _open(self) -> Mapping[str, Any]:
        files = self._safetensors_files()
        if files:
            return {name: file for file in map(self._open_safetensors, files) for name in file.keys()}  # noqa: SIM118
        pickled = self.folder / "pytorch_model.bin"
        if pickled.is_file():
            return _read_pickled(pickled)
        raise ConfigError(
            f"a model folder holds *.safetensors or pytorch_model.bin, {self.folder} holds neither. "
            f"A checkpoint of several .bin files must be converted to safetensors."
        )

    def _safetensors_files(self) -> list[Path]:
        index = self.folder / _INDEX
        if not index.is_file():
            # Some repositories hold the same weights once more under another name.
            usual = self.folder / "model.safetensors"
            return [usual] if usual.is_file() else sorted(self.folder.glob("*.safetensors"))
        try:
            names = sorted({_file_name(name) for name in json.loads(index.read_text("utf-8"))["weight_map"].values()})
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"{index} must hold a JSON object with a weight_map: {error!r}. Fetch it again."
            ) from error
        missing = [name for name in names if not (self.folder / name).is_file()]
        if missing:
            raise ConfigError(f"{_INDEX} names files that are not in {self.folder}: {', '.join(missing)}.")
        return [self.folder / name for name in names]

    def _open_safetensors(self, file: Path) -> Any:
        try:
            return self._files.enter_context(safe_open(file, framework="pt"))
        except SafetensorError as error:
            raise ConfigError(f"{file} is not a whole safetensors file: {error}. Fetch it again.") from error


def _file_name(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a weight_map names files, got {value!r}")
    return value


def _read_pickled(file: Path) -> Mapping[str, torch.Tensor]:
    try:
        tensors = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{file} must hold tensors only, in torch's zip format: {reason} Convert it.") from error
    if not isinstance(tensors, dict) or not all(isinstance(value, torch.Tensor) for value in tensors.values()):
        raise ConfigError(f"{file} must hold a dictionary of tensors. Convert it to safetensors.")
    return tensors
