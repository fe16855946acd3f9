"""Ranks of a benchmark that is interrupted or killed: they say nothing and are gone."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.ranks

PARENT = """
import multiprocessing, os, sys, time
from fastverify.comm.bench.children import end_with_parent, shielded_from_interrupts

def work(connection):
    end_with_parent()
    connection.send(os.getpid())
    time.sleep(60)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with shielded_from_interrupts():
        child = context.Process(target=work, args=(theirs,), daemon=True)
        child.start()
    print(ours.recv(), flush=True)
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.mark.parametrize(("how", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGKILL, -9)])
def test_a_rank_ends_with_its_parent_without_a_word(how: signal.Signals, exit_code: int, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        if how is signal.SIGINT:
            os.killpg(parent.pid, how)  # as a terminal does: to the whole group
        else:
            os.kill(parent.pid, how)
        _, errors = parent.communicate(timeout=20)
    assert parent.returncode == exit_code
    assert "Traceback" not in errors
    deadline = time.monotonic() + 10
    while not _has_ended(child):
        assert time.monotonic() < deadline, "the rank outlives its parent"
        time.sleep(0.02)


def _has_ended(process_id: int) -> bool:
    """Also where nobody has asked for its exit code yet."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
