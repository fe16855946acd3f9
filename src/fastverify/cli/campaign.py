"""What `plan`, `tune`, `status`, `report` and `demo` share: campaign folders, prompts, the all-reduce table."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastverify import bundled
from fastverify.cli.bench import run_with_progress
from fastverify.cli.console import err
from fastverify.cli.tuning_progress import TuningProgress
from fastverify.engine.config import EngineConfig
from fastverify.errors import ConfigError, EnvironmentMissingError
from fastverify.model_config import read_model_config
from fastverify.servers.builtin import BuiltinServer
from fastverify.servers.server import Prompt, Setting
from fastverify.tuning.all_reduce_table import AllReduceRow
from fastverify.tuning.campaign import LEDGER_FILE, CampaignDocument
from fastverify.tuning.tuner import Tuner
from fastverify.units import ITEM_BYTES

if TYPE_CHECKING:
    from fastverify.comm.bench.cpu import BenchConfig

RUNS = Path("runs")
# Rows of a pass that the table covers: plain decoding, chains of 1 to 8 drafts, a tree, one prompt chunk.
TABLE_ROWS = (1, 2, 4, 6, 8, 12, 16)


def new_folder(folder: Path | None) -> Path:
    """The given campaign folder, or a new one in `runs/` named after the time; made now, before anything is measured.

    Raises: ConfigError where it cannot be made or written.
    """
    folder = folder or RUNS / datetime.now().strftime("%Y-%m-%d-%H%M%S")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"a campaign needs a folder, but {folder} cannot be made: {error.strerror}.") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"a campaign needs a folder to write to, but {folder} is not writable. Give another with -o.")
    return folder


def existing_folder(folder: Path | None) -> Path:
    """The given campaign folder, or the newest in `runs/`. Raises ConfigError where there is none."""
    if folder is not None:
        return folder
    ledgers = sorted(RUNS.glob(f"*/{LEDGER_FILE}"), key=lambda path: path.parent.name)
    if not ledgers:
        raise ConfigError(f"no campaign in {RUNS}/. Start one with `fastverify plan`, or name its folder.")
    return ledgers[-1].parent


@contextmanager
def open_tuner(folder: Path, document: CampaignDocument) -> Iterator[Tuner]:
    """The tuner of a campaign, drawing its progress on stderr."""
    with (
        TuningProgress(err) as progress,
        closing(
            Tuner(
                folder,
                BuiltinServer(),
                document.settings,
                document.prompts,
                document.all_reduce,
                document.options,
                progress=progress,
            )
        ) as tuner,
    ):
        yield tuner


def bundled_prompts(domain: str) -> tuple[Prompt, ...]:
    """Held-out prompts that come with the package."""
    return tuple(Prompt(one.prompt_id, one.text, domain) for one in bundled.prompts(domain))


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """Prompts of a JSON-lines file with `text`, and optionally `id` and `domain`, on each line.

    Raises: ConfigError that names the line, the rule and what came.
    """
    if not path.is_file():
        raise ConfigError(f"prompts are a JSON-lines file, but {path} is not a file.")
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"prompts are a readable UTF-8 file, but {path} is not: {error}.") from error
    if not lines:
        raise ConfigError(f"prompts need at least one line, but {path} is empty.")
    return tuple(_read_prompt(path, number, line) for number, line in enumerate(lines, 1))


def _read_prompt(path: Path, number: int, line: str) -> Prompt:
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}, line {number}: a prompt is one JSON object per line, got {error}.") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("text"), str) or not fields["text"]:
        raise ConfigError(f'{path}, line {number}: a prompt needs a non-empty "text", got {line[:80]!r}.')
    return Prompt(str(fields.get("id", f"line{number}")), fields["text"], str(fields.get("domain", "")))


def measure_all_reduce(config: EngineConfig, model_folder: Path, iterations: int) -> tuple[AllReduceRow, ...]:
    """Benchmark every backend at the message sizes of this model's passes; nothing to measure on one rank."""
    if config.tp_size == 1:
        return ()
    result = run_with_progress(_bench_config(config, model_folder, iterations))
    return tuple(AllReduceRow.model_validate(row.to_dict()) for row in result.rows)


def _bench_config(config: EngineConfig, model_folder: Path, iterations: int) -> BenchConfig:
    try:
        from fastverify.comm.bench.cpu import BenchConfig
    except ImportError as error:
        raise EnvironmentMissingError(
            f"measuring the all-reduce needs the package {error.name}. Install fastverify[torch], which brings it."
        ) from error
    hidden_size = read_model_config(model_folder).hidden_size
    row_bytes = hidden_size * ITEM_BYTES[config.dtype]
    sizes = tuple(rows * row_bytes for rows in TABLE_ROWS)
    return BenchConfig(sizes, config.tp_size, config.dtype, iterations, hidden_size)


def changed_settings(config: EngineConfig, always: Sequence[str] = ()) -> dict[str, Setting]:
    """Settings that differ from the engine's defaults, and those in `always`, in the order of the fields."""
    defaults = EngineConfig().to_dict()
    return {name: value for name, value in config.to_dict().items() if value != defaults[name] or name in always}


def document_of(result: Mapping[str, Any], folder: Path, files: Sequence[Path]) -> dict[str, Any]:
    """The final JSON object of a campaign verb: the result, and where its files are."""
    return {**result, "folder": str(folder), "files": [str(path) for path in files]}
