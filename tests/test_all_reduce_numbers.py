"""The tables of docs/all-reduce-measured.md are the records that they name, to the last digit."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "all-reduce-measured.md"
ROW_BYTES = {"4096": 8192, "7168": 14_336}
NUMBER = re.compile(r"-?\d+\.\d+")


@dataclass
class Table:
    """A table below a line `Record: [title](path)`; "every launch" behind it counts those that were only tried."""

    title: str
    record: Path
    every_launch: bool
    rows: list[list[str]] = field(default_factory=list)

    def median_us(self, backend: str, num_bytes: int, fused: bool) -> float:
        rows = json.loads(self.record.read_text())["results"]["rows"]
        wanted = (backend, num_bytes, fused)
        return min(
            row["median_us"]
            for row in rows
            if (label(row), row["num_bytes"], row["fused"]) == wanted and row["median_us"] is not None
            if self.every_launch or not row["tried"]
        )


def label(row: dict[str, str]) -> str:
    setting = row["setting"]
    return f"{row['backend']}:{setting}" if setting and setting != "default" else row["backend"]


def tables() -> list[Table]:
    found: list[Table] = []
    record: Table | None = None
    inside = False
    for line in PAGE.read_text().splitlines():
        if match := re.match(r"Record: \[([^\]]+)\]\(([^)]+)\)(, every launch)?$", line):
            record = Table(match[1], (PAGE.parent / match[2]).resolve(), match[3] is not None)
        elif line.startswith("#"):
            record = None
        elif line.startswith("|") and record:
            if not inside:
                found.append(Table(record.title, record.record, record.every_launch))
            found[-1].rows.append([cell.strip(" `") for cell in line.strip("|").split("|")])
        inside = line.startswith("|")
    return found


def num_bytes_of(size: str) -> int:
    number, unit = size.split()
    return int(number) * {"KB": 1024, "MB": 1 << 20}[unit]


def shown(us: float) -> str:
    return f"{us:.2f}" if us < 100 else f"{us:.1f}"


def sizes_of(table: Table) -> list[int]:
    cells = table.rows[0][1:]
    if rows_of := re.fullmatch(r"rows of (\d+)", table.title):
        return [int(cell) * ROW_BYTES[rows_of[1]] for cell in cells]
    return [num_bytes_of(cell) for cell in cells]


def check_by_size(table: Table) -> int:
    is_fused, has_bold = table.rows[0][0] == "fused", any("**" in cell for row in table.rows for cell in row)
    for place, num_bytes in enumerate(sizes_of(table), start=1):
        column = {row[0]: row[place] for row in table.rows[2:]}
        times = {backend: table.median_us(backend, num_bytes, is_fused) for backend in column}
        for backend, us in times.items():
            expected = f"**{shown(us)}**" if has_bold and us == min(times.values()) else shown(us)
            assert column[backend] == expected, (backend, num_bytes)
    return len(table.rows[2:])


def check_settings(table: Table) -> int:
    num_bytes = num_bytes_of(table.rows[0][0])
    for backend, *cells in table.rows[2:]:
        assert cells == [shown(table.median_us(backend, num_bytes, fused)) for fused in (False, True)], backend
    return 2 * len(table.rows[2:])


def check_targets(table: Table) -> int:
    for what, bound, measured, verdict in table.rows[2:]:
        match = re.fullmatch(r"(\w+)` (sum|above plain) (.+)", what)
        assert match, what
        num_bytes = num_bytes_of(match[3])
        us = table.median_us(match[1], num_bytes, fused=False)
        if match[2] == "above plain":
            us = table.median_us(match[1], num_bytes, fused=True) - us
        assert measured == shown(us), what
        assert verdict.startswith("met" if us <= float(bound) else "**missed**"), what
    return len(table.rows[2:])


@pytest.mark.parametrize("table", tables(), ids=lambda table: f"{table.title} {table.rows[0][0]}")
def test_a_table_is_its_record(table: Table) -> None:
    first = table.rows[0][0]
    check = {"sum": check_by_size, "fused": check_by_size, "target": check_targets}.get(first, check_settings)
    assert check(table) > 0


def test_the_page_has_its_tables() -> None:
    assert len(tables()) == 15
    assert {table.rows[0][0] for table in tables()} == {"sum", "fused", "8 KB", "target"}


def test_linked_files_exist() -> None:
    for page in [*(ROOT / "docs").glob("all-reduce*.md"), ROOT / "docs" / "plugins.md"]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), (page.name, target)


def test_links_are_the_printed_report() -> None:
    report = (ROOT / "benchmarks" / "results" / "links_h200x2_2026-11.txt").read_text()
    section = PAGE.read_text().partition("## Links")[2].partition("\n## ")[0]
    for line in section.splitlines():
        if line.startswith("|"):
            assert all(number in report for number in NUMBER.findall(line)), line
