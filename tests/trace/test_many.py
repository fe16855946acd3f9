import shutil
from pathlib import Path

import pytest

from fastverify.errors import TraceFormatError
from fastverify.trace import many
from tests.trace.golden import CUTS

RANKS = [CUTS / "vllm-h200-eagle3" / f"rank{rank}.json.gz" for rank in (0, 1)]


def kernel_counts(traces) -> list[tuple[int, int]]:
    return [(trace.info.rank, len(trace.kernels)) for trace in traces]


@pytest.mark.ranks
def test_processes_give_the_same_tables_in_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    one_by_one = many.read_traces(RANKS)
    seen: list[tuple[int, int | None]] = []
    monkeypatch.setattr(many, "PARALLEL_BYTES", 0)
    in_parallel = many.read_traces(RANKS, lambda done, total: seen.append((done, total)))
    assert kernel_counts(in_parallel) == kernel_counts(one_by_one)
    total = sum(path.stat().st_size for path in RANKS)
    assert seen[-1] == (total, total)


def test_progress_adds_up_over_files() -> None:
    seen: list[int] = []
    many.read_traces(RANKS, lambda done, total: seen.append(done))
    assert seen == sorted(seen)
    assert seen[-1] == sum(path.stat().st_size for path in RANKS)


def test_a_folder_stands_for_its_files(tmp_path: Path) -> None:
    shutil.copy(RANKS[0], tmp_path / "rank0.json.gz")
    (tmp_path / "notes.txt").write_text("not a trace")
    assert kernel_counts(many.read_traces([tmp_path])) == kernel_counts(many.read_traces(RANKS[:1]))


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(TraceFormatError, match="must exist"):
        many.read_traces([tmp_path / "nothing.json"])
    with pytest.raises(TraceFormatError, match="has none"):
        many.read_traces([tmp_path])
