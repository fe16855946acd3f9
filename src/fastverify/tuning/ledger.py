"""The ledger: every experiment, every trial and every state they went through, in one SQLite file.

Append-only: a trial is one row when it starts and one when it ends, a state is the newest of its transitions, and
triggers refuse any change of a row. A trial that has a start and no end was torn by a kill; `recover` closes it as
interrupted and its experiment is pending again. Documents are JSON; the ledger does not look into them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Self, get_args

from fastverify.errors import LedgerError
from fastverify.tuning.outcome import Outcome

SCHEMA_VERSION = 1
State = Literal["pending", "running", "done", "failed", "skipped"]
STATES: tuple[State, ...] = get_args(State)
APPEND_ONLY = ("campaign", "documents", "experiments", "transitions", "trials", "results")
# A writer holds the file for milliseconds; a reader such as `fastverify status` waits this long at most.
BUSY_TIMEOUT_S = 10.0

_TABLES = """
CREATE TABLE campaign (id INTEGER PRIMARY KEY CHECK (id = 1), schema_version INTEGER NOT NULL,
    created_at TEXT NOT NULL);
CREATE TABLE documents (name TEXT PRIMARY KEY, at TEXT NOT NULL, document TEXT NOT NULL);
CREATE TABLE experiments (experiment_id TEXT PRIMARY KEY, rank INTEGER NOT NULL, document TEXT NOT NULL);
CREATE TABLE transitions (seq INTEGER PRIMARY KEY, at TEXT NOT NULL, reason TEXT NOT NULL,
    experiment_id TEXT NOT NULL REFERENCES experiments, state TEXT NOT NULL
    CHECK (state IN ('pending', 'running', 'done', 'failed', 'skipped')));
CREATE TABLE trials (trial_id INTEGER PRIMARY KEY, at TEXT NOT NULL, purpose TEXT NOT NULL,
    experiment_id TEXT REFERENCES experiments, document TEXT NOT NULL);
CREATE TABLE results (trial_id INTEGER PRIMARY KEY REFERENCES trials, at TEXT NOT NULL, outcome TEXT NOT NULL,
    document TEXT NOT NULL);
CREATE TABLE lock (id INTEGER PRIMARY KEY CHECK (id = 1), process_id INTEGER NOT NULL, process_started REAL NOT NULL,
    host TEXT NOT NULL, at TEXT NOT NULL);
CREATE VIEW states AS SELECT experiment_id, state, reason, at FROM transitions t
    WHERE seq = (SELECT max(seq) FROM transitions WHERE experiment_id = t.experiment_id);
"""


@dataclass(frozen=True)
class ExperimentEntry:
    """An experiment and its newest state."""

    experiment_id: str
    rank: int
    document: str
    state: State
    reason: str


@dataclass(frozen=True)
class TrialEntry:
    """A trial; `outcome` and `result` are None while it runs or when it was torn."""

    trial_id: int
    at: str
    purpose: str
    experiment_id: str | None
    document: str
    outcome: Outcome | None
    result: str | None


class Ledger:
    """One open ledger file. Reading needs no lock; writing belongs to the campaign that holds it (campaign_lock.py)."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self.connection = connection

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the ledger, or create it. Raises LedgerError for a file that is no ledger of this version."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            ledger = cls(path, sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None))
        except (sqlite3.Error, OSError) as error:
            raise _unreadable(path, error) from error
        try:
            ledger._prepare()
        except sqlite3.Error as error:
            ledger.close()
            raise _unreadable(path, error) from error
        return ledger

    def _prepare(self) -> None:
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = FULL")
        self.connection.execute("PRAGMA foreign_keys = ON")
        with self.transaction():
            tables = {
                name for (name,) in self.connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            }
            if not tables:
                self._create()
            elif "campaign" not in tables:
                raise sqlite3.DatabaseError(f"it holds other tables ({', '.join(sorted(tables))})")
        (version,) = self.connection.execute("SELECT schema_version FROM campaign").fetchone()
        if version != SCHEMA_VERSION:
            self.close()
            raise LedgerError(
                f"this fastverify reads ledgers of schema version {SCHEMA_VERSION}, got {version} in {self.path}. "
                "Use the version that wrote it, or another folder."
            )

    def _create(self) -> None:
        for statement in _TABLES.strip().split(";\n"):
            self.connection.execute(statement)
        for table in APPEND_ONLY:
            for verb in ("UPDATE", "DELETE"):
                self.connection.execute(
                    f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
                    "BEGIN SELECT RAISE(ABORT, 'a record of the ledger is never rewritten'); END"
                )
        self.connection.execute("INSERT INTO campaign VALUES (1, ?, ?)", (SCHEMA_VERSION, _now()))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All writes of the body, or none. Nested bodies join the outer one."""
        if self.connection.in_transaction:
            yield
            return
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")

    def put_document(self, name: str, document: str) -> None:
        """Store a document once. Raises LedgerError when the name is taken."""
        try:
            with self.transaction():
                self.connection.execute("INSERT INTO documents VALUES (?, ?, ?)", (name, _now(), document))
        except sqlite3.IntegrityError:
            raise LedgerError(f"document {name!r} of {self.path} was written before and is never rewritten.") from None

    def document(self, name: str) -> str | None:
        """A stored document."""
        row = self.connection.execute("SELECT document FROM documents WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    def add_experiments(self, documents: Sequence[tuple[str, str]]) -> None:
        """Experiments (id, document) in the order of their rank, all pending."""
        with self.transaction():
            for rank, (experiment_id, document) in enumerate(documents, start=1):
                self.connection.execute("INSERT INTO experiments VALUES (?, ?, ?)", (experiment_id, rank, document))
                self.set_state(experiment_id, "pending", "planned")

    def set_state(self, experiment_id: str, state: State, reason: str) -> None:
        """Append a transition."""
        with self.transaction():
            self.connection.execute(
                "INSERT INTO transitions (at, reason, experiment_id, state) VALUES (?, ?, ?, ?)",
                (_now(), reason, experiment_id, state),
            )

    def start_trial(self, purpose: str, document: str, experiment_id: str | None = None) -> int:
        """Append a trial; its experiment is running now. Returns the trial's number."""
        with self.transaction():
            cursor = self.connection.execute(
                "INSERT INTO trials (at, purpose, experiment_id, document) VALUES (?, ?, ?, ?)",
                (_now(), purpose, experiment_id, document),
            )
            if experiment_id is not None:
                self.set_state(experiment_id, "running", f"trial {cursor.lastrowid}")
        assert cursor.lastrowid is not None, "an insert has a row id"
        return cursor.lastrowid

    def finish_trial(
        self, trial_id: int, outcome: Outcome, document: str, *, state: State | None = None, reason: str = ""
    ) -> None:
        """Append a trial's end and, in the same transaction, the state that its experiment has now."""
        with self.transaction():
            self.connection.execute("INSERT INTO results VALUES (?, ?, ?, ?)", (trial_id, _now(), outcome, document))
            (experiment_id,) = self.connection.execute(
                "SELECT experiment_id FROM trials WHERE trial_id = ?", (trial_id,)
            ).fetchone()
            if experiment_id is not None and state is not None:
                self.set_state(experiment_id, state, reason)

    def recover(self) -> tuple[int, ...]:
        """Close every torn trial as interrupted; its experiment is pending again. Returns their numbers."""
        torn = [entry for entry in self.trials() if entry.outcome is None]
        for entry in torn:
            self.finish_trial(
                entry.trial_id, "interrupted", "{}", state="pending", reason="interrupted, to be run again"
            )
        return tuple(entry.trial_id for entry in torn)

    def experiments(self) -> tuple[ExperimentEntry, ...]:
        """Every experiment with its newest state, by rank."""
        rows = self.connection.execute(
            "SELECT experiment_id, rank, document, state, reason FROM experiments JOIN states USING (experiment_id) "
            "ORDER BY rank"
        )
        return tuple(ExperimentEntry(*row) for row in rows)

    def trials(self) -> tuple[TrialEntry, ...]:
        """Every trial, oldest first."""
        rows = self.connection.execute(
            "SELECT trial_id, trials.at, purpose, experiment_id, trials.document, outcome, results.document "
            "FROM trials LEFT JOIN results USING (trial_id) ORDER BY trial_id"
        )
        return tuple(TrialEntry(*row) for row in rows)

    def transitions(self, experiment_id: str) -> tuple[tuple[State, str], ...]:
        """States and reasons of one experiment, oldest first."""
        rows = self.connection.execute(
            "SELECT state, reason FROM transitions WHERE experiment_id = ? ORDER BY seq", (experiment_id,)
        )
        return tuple(rows)

    def close(self) -> None:
        """Close the file. Calling twice is harmless."""
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _unreadable(path: Path, error: Exception) -> LedgerError:
    return LedgerError(
        f"{path} must be a ledger of fastverify, but opening it failed: {error}. "
        "Move the file away, or give another folder."
    )
