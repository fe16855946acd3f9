"""The table of all-reduces measured on this machine, and the file that spares the next process from measuring again.

A table belongs to its key (gpu/key.py): another driver, library or link gives another file. The file appears by rename.
One that cannot be read, is of another version or belongs to another key is a warning and is measured anew. Only rank 0
reads and writes it; the ranks get its text from there, so they cannot disagree.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_type_hints

from fastverify.comm.cuda.launch import Launch
from fastverify.errors import ConfigError
from fastverify.whole_file import write_whole

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 2
Key = Mapping[str, Any]

Op = Literal["all_reduce", "all_reduce_residual_rmsnorm", "all_gather"]
NORM: Final = "all_reduce_residual_rmsnorm"
# contract: within the bound of a float32 sum that is rounded once. rounded: within that of rounding at every addition,
# as libraries do that send partial sums in 16 bits. none: it did not answer.
Accuracy = Literal["contract", "rounded", "wrong", "none"]


@dataclass(frozen=True)
class Row:
    """One way to run one operation on messages of one size. `launch` is None where a library decides by itself.

    `num_bytes`: one rank's input. `row_bytes`: one row of a fused norm, else 0. `separate_norm`: a sum, then the norm.
    `latency_us` is the median of the slowest rank, None where it has not been timed, and `reason` says why. One that
    `is_quick` lost clearly in a few replays, and is the best of them. `remark`: what was odd about the samples.
    """

    backend: str
    launch: Launch | None
    op: Op
    num_bytes: int
    dtype: str
    accuracy: Accuracy
    row_bytes: int = 0
    separate_norm: bool = False
    out_of_place: bool = True
    latency_us: float | None = None
    iqr_us: float | None = None
    is_quick: bool = False
    reason: str = ""
    remark: str = ""

    @property
    def correct(self) -> bool:
        """Whether its answer may be used at all."""
        return self.accuracy in ("contract", "rounded")


@dataclass(frozen=True)
class Table:
    """All rows of one measurement, and why the backends that are in none could not run."""

    rows: tuple[Row, ...]
    unable: Mapping[str, str]
    measured_s: float = 0.0

    def to_json(self) -> str:
        """One row a line."""
        rows = ",\n".join(json.dumps(_row_to_dict(row)) for row in self.rows)
        unable = json.dumps(dict(self.unable))
        return f'{{"measured_s": {self.measured_s:.3f}, "unable": {unable}, "rows": [\n{rows}\n]}}'

    @classmethod
    def from_json(cls, text: str) -> Table:
        """What `to_json` made. Raises ConfigError for anything else."""
        try:
            data = json.loads(text)
            rows = tuple(_row_from_dict(row) for row in data["rows"])
            unable = {str(name): str(reason) for name, reason in data["unable"].items()}
            return cls(rows, unable, float(data["measured_s"]))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"a table of all-reduces must be as fastverify writes it, got {error!r}.") from error


def table_path(key: Key, folder: Path) -> Path:
    """Where the table of this key is kept."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    return folder / "all-reduce" / f"{digest}.json"


def read_table(path: Path, key: Key) -> Table | None:
    """The table that is kept for this key, or None where there is none; a file that is not one is a warning too."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        logger.warning("the all-reduce is measured anew, since %s cannot be read: %s", path, error)
        return None
    try:
        return _parse(text, key)
    except ConfigError as error:
        logger.warning("the all-reduce is measured anew, since %s is not its table: %s", path, error)
        return None


def write_table(path: Path, key: Key, table: Table) -> None:
    """Keep it. Where the folder cannot be written, that is a warning."""
    header = json.dumps({"schema_version": SCHEMA_VERSION, "key": key}, indent=1)[:-2]
    text = f'{header},\n "table": {table.to_json()}\n}}\n'
    try:
        write_whole(path, text.encode())
    except OSError as error:
        logger.warning("the measured all-reduce is not kept, since %s cannot be written: %s", path, error)


def _parse(text: str, key: Key) -> Table:
    try:
        data = json.loads(text)
        version, known, table = data["schema_version"], data["key"], data["table"]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"a table file is JSON with schema_version, key and table, got {error!r}.") from error
    if version != SCHEMA_VERSION:
        raise ConfigError(f"its schema_version must be {SCHEMA_VERSION}, got {version!r}.")
    if known != json.loads(json.dumps(key)):
        raise ConfigError("it must be of this machine, these versions and this environment, and is not.")
    return Table.from_json(json.dumps(table))


def _row_to_dict(row: Row) -> dict[str, Any]:
    values = {field.name: getattr(row, field.name) for field in fields(row)}
    if row.launch is not None:
        values["launch"] = {
            name: value.name if isinstance(value, Enum) else value for name, value in asdict(row.launch).items()
        }
    return values


def _row_from_dict(values: dict[str, Any]) -> Row:
    row = Row(**values | {"launch": None if values["launch"] is None else _launch_from_dict(values["launch"])})
    if row.op not in get_args(Op) or row.accuracy not in get_args(Accuracy):
        raise ValueError(f"op {row.op!r}, accuracy {row.accuracy!r}")
    if not isinstance(row.num_bytes, int) or not isinstance(row.latency_us, float | int | None):
        raise TypeError(f"num_bytes {row.num_bytes!r}, latency_us {row.latency_us!r}")
    return row


def _launch_from_dict(values: dict[str, Any]) -> Launch:
    """Fields that are an enum are written by name."""
    enums = {name: kind for name, kind in get_type_hints(Launch).items() if issubclass(kind, Enum)}
    return Launch(**{name: enums[name][value] if name in enums else value for name, value in values.items()})
