"""Where the profiler files of the golden tests are: small cuts in the repository, whole ones beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CUTS = ROOT / "tests" / "data" / "traces"
WHOLE = ROOT.parent / "shared" / "traces"


def whole(*names: str) -> list[Path]:
    """Paths of whole files; the test is skipped where they are not."""
    paths = [WHOLE / name for name in names]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        pytest.skip(f"whole profiler files are not in ../shared/traces: {', '.join(missing)}")
    return paths
