"""scripts/check_gpu with stand-ins for Python and compute-sanitizer: stages, limits, what it leaves, its exit code."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "check_gpu"
PYTHON = """#!/bin/bash
case $1 in
  -c) echo "${FAKE_GPUS}" ;;
  scripts/sanitize_kernels.py) echo "rank $4: 30 launches and a gather right" ;;
  -m) [[ $2 == pytest ]] && sleep "${FAKE_SLEEP:-0}"; echo "ran: $*" ;;
esac
"""
SANITIZER = """#!/bin/bash
[[ $1 == --version ]] && echo "a sanitizer" && exit 0
tool=$2
while [[ $1 == --* ]]; do shift 2; done
"$@"
[[ $tool == "$FAKE_FINDING" && $* == *"--rank 1"* ]] && echo "========= ERROR SUMMARY: 1 error" && exit 99
echo "========= ERROR SUMMARY: 0 errors"
"""


def check_gpu(folder: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    programs = folder / "bin"
    programs.mkdir()
    for name, text in (("python3", PYTHON), ("compute-sanitizer", SANITIZER)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    environment = {"FAKE_GPUS": "2", "FAKE_FINDING": "", **settings, "PATH": path}
    return subprocess.run(
        [SCRIPT, *arguments, "--out", folder / "out"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_all_stages_pass_and_leave_few_files(tmp_path: Path) -> None:
    done = check_gpu(tmp_path, "all")
    assert done.returncode == 0, done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines()[-5:]] == [
        "tests",
        "sanitize",
        "links",
        "bench",
        "trace",
    ]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"check_gpu.log", "links.json", "bench.json"}
    assert "--virtual-ranks" not in (tmp_path / "out" / "bench.json").read_text()


def test_a_finding_of_one_sanitizer_fails_the_run(tmp_path: Path) -> None:
    done = check_gpu(tmp_path, "sanitize", "links", FAKE_FINDING="racecheck")
    assert done.returncode == 1
    assert "failed (1)" in done.stdout.splitlines()[-2]
    assert "passed" in done.stdout.splitlines()[-1]
    log = (tmp_path / "out" / "check_gpu.log").read_text()
    in_short = log[log.index("---- in short") :]
    assert in_short.count("SUMMARY: 1 error") == 1
    # Two ranks under three tools, four under one, less the finding.
    assert in_short.count("SUMMARY: 0 errors") == 9


def test_a_stage_that_hangs_is_ended(tmp_path: Path) -> None:
    done = check_gpu(tmp_path, "tests", "bench", FAKE_SLEEP="30", FAKE_GPUS="1", CHECK_GPU_LIMIT_TESTS="1")
    assert done.returncode == 1
    assert "ran out of time" in done.stdout.splitlines()[-2]
    assert "--virtual-ranks 2" in (tmp_path / "out" / "bench.json").read_text()


@pytest.mark.parametrize("arguments", [(), ("test",), ("--out",)])
def test_what_it_cannot_do_is_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = check_gpu(tmp_path, *arguments)
    assert done.returncode == 2
    assert "Stages: tests, sanitize" in done.stdout
