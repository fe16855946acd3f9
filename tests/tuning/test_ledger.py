import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from fastverify.errors import LedgerError
from fastverify.tuning.campaign_lock import campaign_lock, holder
from fastverify.tuning.ledger import APPEND_ONLY, Ledger


@pytest.fixture
def ledger(tmp_path: Path):
    with Ledger.open(tmp_path / "ledger.sqlite") as opened:
        opened.add_experiments([("comm.shm", "{}"), ("draft.k2", "{}")])
        yield opened


def test_states_are_the_newest_transitions(ledger: Ledger) -> None:
    trial_id = ledger.start_trial("experiment", "{}", "comm.shm")
    assert [entry.state for entry in ledger.experiments()] == ["running", "pending"]
    ledger.finish_trial(trial_id, "ok", '{"x": 1}', state="done", reason="1.5 times")
    ledger.set_state("draft.k2", "skipped", "no time")
    assert [(entry.state, entry.reason) for entry in ledger.experiments()] == [
        ("done", "1.5 times"),
        ("skipped", "no time"),
    ]
    assert [state for state, _ in ledger.transitions("comm.shm")] == ["pending", "running", "done"]
    (trial,) = ledger.trials()
    assert (trial.outcome, trial.result) == ("ok", '{"x": 1}')


def test_a_torn_trial_is_closed_and_its_experiment_pending_again(ledger: Ledger) -> None:
    finished = ledger.start_trial("baseline", "{}")
    ledger.finish_trial(finished, "ok", "{}")
    torn = ledger.start_trial("experiment", "{}", "draft.k2")
    assert ledger.recover() == (torn,)
    assert ledger.recover() == ()
    assert [entry.state for entry in ledger.experiments()] == ["pending", "pending"]
    assert [trial.outcome for trial in ledger.trials()] == ["ok", "interrupted"]


@pytest.mark.parametrize("table", APPEND_ONLY)
def test_no_record_is_ever_rewritten(ledger: Ledger, table: str) -> None:
    ledger.put_document("plan", "{}")
    ledger.finish_trial(ledger.start_trial("baseline", "{}"), "ok", "{}")
    column = ledger.connection.execute(f"SELECT name FROM pragma_table_info('{table}') LIMIT 1").fetchone()[0]
    for statement in (f"DELETE FROM {table}", f"UPDATE {table} SET {column} = {column}"):
        with pytest.raises(sqlite3.IntegrityError, match="never rewritten"):
            ledger.connection.execute(statement)


def test_an_end_is_written_once_and_documents_too(ledger: Ledger) -> None:
    trial_id = ledger.start_trial("baseline", "{}")
    ledger.finish_trial(trial_id, "ok", "{}")
    with pytest.raises(sqlite3.IntegrityError):
        ledger.finish_trial(trial_id, "crash", "{}")
    ledger.put_document("plan", "{}")
    with pytest.raises(LedgerError, match="never rewritten"):
        ledger.put_document("plan", '{"other": 1}')
    assert ledger.document("plan") == "{}"


def test_a_failed_body_writes_nothing(ledger: Ledger) -> None:
    def torn() -> None:
        with ledger.transaction():
            ledger.start_trial("experiment", "{}", "comm.shm")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        torn()
    assert ledger.trials() == ()
    assert ledger.experiments()[0].state == "pending"


@pytest.mark.parametrize("content", [b"not a database, but long enough to be taken for one" * 30, None])
def test_a_foreign_file_is_refused_with_what_to_do(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "ledger.sqlite"
    if content is None:
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE recipes (name TEXT)")
        connection.close()
    else:
        path.write_bytes(content)
    with pytest.raises(LedgerError, match="Move the file away"):
        Ledger.open(path)


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    Ledger.open(path).close()
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER campaign_no_update")
    connection.execute("UPDATE campaign SET schema_version = 99")
    connection.commit()
    connection.close()
    with pytest.raises(LedgerError, match="schema version 1, got 99"):
        Ledger.open(path)


def set_holder(ledger: Ledger, process_id: int, started: float, host: str) -> None:
    ledger.connection.execute("INSERT INTO lock VALUES (1, ?, ?, ?, '')", (process_id, started, host))


def test_a_running_campaign_refuses_a_second_one_with_its_process_id(ledger: Ledger) -> None:
    other = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        set_holder(ledger, other.pid, psutil.Process(other.pid).create_time(), os.uname().nodename)
        assert holder(ledger) == other.pid
        with pytest.raises(LedgerError, match=f"process {other.pid} on "), campaign_lock(ledger):
            pass
    finally:
        other.communicate()
    with campaign_lock(ledger):
        assert holder(ledger) == os.getpid(), "the lock of a dead process is taken over"
    assert holder(ledger) is None


def test_a_process_number_that_was_given_away_again_is_stale(ledger: Ledger) -> None:
    set_holder(ledger, os.getpid(), psutil.Process().create_time() - 3600, os.uname().nodename)
    with campaign_lock(ledger):
        assert holder(ledger) == os.getpid()


def test_a_lock_of_another_host_is_never_taken_over(ledger: Ledger) -> None:
    set_holder(ledger, 1, 0.0, "elsewhere")
    with pytest.raises(LedgerError, match="process 1 on elsewhere"), campaign_lock(ledger):
        pass
