import importlib.machinery
import importlib.util
import json
import re
import shutil
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fastverify.errors import ConfigError
from fastverify.tuning.campaign import Campaign, make_document
from fastverify.tuning.experiments import Experiment, builtin_catalogue
from fastverify.tuning.report import build_report, write_report
from fastverify.tuning.report_render import render_html, render_markdown
from fastverify.tuning.report_types import Report
from fastverify.tuning.result import TuneResult, result_of
from tests.tuning.machine import BASELINE, Machine
from tests.tuning.report_campaign import OPTIONS, PROMPTS, SERVER, StopAfter, rows, run_campaign
from tests.tuning.report_html import Page

RENDER_PAGE = Path(__file__).parents[2] / "scripts" / "render_page"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_campaign(tmp_path_factory.mktemp("reports") / "pcie-box")


@pytest.fixture(scope="module")
def report(folder: Path) -> Report:
    return build_report(folder)


@pytest.fixture(scope="module")
def html(report: Report) -> str:
    return render_html(report)


def only(experiment_id: str) -> Callable[[Any, Any], list[Experiment]]:
    return lambda *known: [entry for entry in builtin_catalogue(*known) if entry.id == experiment_id]


def without_speculation(folder: Path) -> Report:
    """A machine whose drafts are nearly always wrong: the winner has no speculative arm."""
    machine = Machine(conditional=0.05)
    return build_report(run_campaign(folder, machine, catalogue=only("drafter.none")))


def interrupted(folder: Path, num_experiments: int) -> Report:
    with pytest.raises(KeyboardInterrupt):
        run_campaign(folder, progress=StopAfter(num_experiments))
    return build_report(folder)


def test_numbers_are_those_of_the_final_object(folder: Path, report: Report) -> None:
    campaign = Campaign.open(folder)
    result = result_of(campaign, SERVER)
    campaign.close()
    assert (report.before, report.after) == (result.before, result.after)
    assert sorted(report.experiments, key=lambda e: e.id) == sorted(result.experiments, key=lambda e: e.id)
    assert report.median_prediction_error == result.median_prediction_error
    assert report.finished


def test_bars_decomposition_and_numbers_agree(report: Report) -> None:
    ends = {"before": report.before, "after": report.after}
    for bar in report.bars:
        side = ends[bar.end]
        assert side is not None
        tok_s = side.plain_tok_s if bar.arm == "plain" else side.speculative_tok_s
        assert 1000 * bar.accept_length / bar.cycle_ms == pytest.approx(tok_s)
        assert sum(bar.phases_ms.values()) == pytest.approx(bar.cycle_ms)
    parts, before, after = report.decomposition, report.before, report.after
    assert parts is not None
    assert before is not None
    assert after is not None
    assert parts.total == pytest.approx(parts.shared * parts.speculation)
    assert parts.speculation == pytest.approx(after.speedup / before.speedup)
    assert parts.shared > 3, "gloo's time is in the plain arm as well, so most of the gain is not speculation's"


def test_message_sizes_are_rows_times_hidden_bytes(report: Report) -> None:
    assert [(mark.label, mark.num_bytes) for mark in report.marks] == [("plain pass", 1280), ("verify pass", 4 * 1280)]


def test_draft_length_curve_goes_through_the_measured_point(report: Report) -> None:
    curve, after = report.acceptance, report.after
    assert curve is not None
    assert after is not None
    chosen = next(point for point in curve.points if point.num_proposed_drafts == curve.chosen)
    assert chosen.accept_length == pytest.approx(after.accept_length)
    assert chosen.speedup == pytest.approx(after.speedup)


def test_tried_experiments_come_first_in_the_order_they_ran(report: Report) -> None:
    states = [row.state for row in report.experiments]
    assert states == sorted(states, key=lambda state: state == "skipped")
    assert report.experiments[0].id == "comm.shm"
    assert {row.outcome for row in report.experiments if row.state == "failed"} == {"crash", "wrong_output"}


def test_page_is_well_formed_and_loads_nothing(html: str) -> None:
    page = Page(html)
    assert page.errors == []
    assert page.loads == []
    assert page.scripts == 0
    assert len(page.ids) == len(set(page.ids))
    assert not re.search(r"url\(|@import|https?:", page.style)
    assert "prefers-color-scheme: dark" in page.style
    assert "@media print" in page.style
    assert len(html) < 200_000


def test_page_shows_the_campaigns_numbers(report: Report, html: str) -> None:
    text = Page(html).text
    before, after, winner = report.before, report.after, report.winner
    assert before is not None
    assert after is not None
    assert winner is not None
    for side in (before, after):
        for value in (side.plain_tok_s, side.speculative_tok_s, side.verify_ms):
            assert f"{value:.1f}" in text
        assert f"{side.speedup:.2f}" in text
    for row in report.experiments:
        assert row.id in text
        assert f"{row.predicted_speedup.low:.2f} to {row.predicted_speedup.high:.2f}x" in text
        assert row.measured_speedup is None or f"{row.measured_speedup:.2f}x" in text
    for expected in (report.headline_before, report.headline_after, winner.launch_command, "no NVIDIA GPU here"):
        assert expected in text
    for item in (*report.checks, *report.method):
        assert item.name in text
    assert "usable cores" in text, "the campaign records the machine that it ran on"


def test_marks_stay_inside_their_figures(html: str) -> None:
    for width, height, body in re.findall(r'<svg viewBox="0 0 ([\d.]+) ([\d.]+)"(.*?)</svg>', html):
        for limit, names in ((float(width), ("x", "x1", "x2", "cx")), (float(height), ("y", "y1", "y2", "cy"))):
            values = [float(v) for name in names for v in re.findall(rf' {name}="([-\d.]+)"', body)]
            assert all(0 <= value <= limit for value in values)


def test_markdown_tables_have_one_width_each(report: Report) -> None:
    markdown = render_markdown(report)
    for block in re.findall(r"(?:^\|.*\n)+", markdown, flags=re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block
    assert report.winner is not None
    assert f"```\n{report.winner.launch_command}\n```" in markdown
    assert "<rank 1> \\| torch.cuda.OutOfMemoryError" in markdown


def test_text_of_a_server_log_stays_text(html: str) -> None:
    assert "<rank 1>" not in html
    assert "<rank 1> | torch.cuda.OutOfMemoryError" in Page(html).text


def test_files_hold_the_report(report: Report, tmp_path: Path) -> None:
    html_path, markdown_path, json_path = write_report(report, tmp_path / "out")
    assert Report.model_validate_json(json_path.read_text()) == report
    assert html_path.read_text().startswith("<!doctype html>")
    assert report.headline_after in markdown_path.read_text()
    final = {"schema_version", "before", "after", "experiments", "winner"}
    assert final | set(TuneResult.model_fields) <= set(json.loads(json_path.read_text()))


def test_plan_without_trials(tmp_path: Path) -> None:
    report = build_report(run_campaign(tmp_path, plan_only=True))
    assert report.before is not None
    assert report.after is None
    assert not report.finished
    assert {row.state for row in report.experiments} == {"pending"}
    page = Page(render_html(report))
    assert page.errors == []
    assert report.headline_before in page.text
    assert "After" not in page.text
    assert "Nothing tried was better" not in page.text


def test_interrupted_campaign_shows_the_best_so_far(tmp_path: Path) -> None:
    report = interrupted(tmp_path, 1)
    assert {row.id: row.state for row in report.experiments}["comm.shm"] == "done"
    assert [row.state for row in report.experiments].count("running") == 1
    assert not report.finished
    page = Page(render_html(report))
    assert page.errors == []
    assert f"Best so far: {report.headline_after}" in page.text
    assert "campaign not finished" in page.text
    assert report.winner is not None
    assert "not finished" in report.winner.detail


def test_campaign_before_its_baseline(tmp_path: Path) -> None:
    document = make_document("builtin", BASELINE, PROMPTS, OPTIONS, rows())
    Campaign.open_or_create(tmp_path, document).close()
    page = Page(render_html(build_report(tmp_path)))
    assert page.errors == []
    assert "No baseline measurement yet." in page.text


def test_campaign_in_which_nothing_was_better(tmp_path: Path) -> None:
    report = build_report(run_campaign(tmp_path, catalogue=only("drafter.ngram")))
    assert report.finished
    assert report.after == report.before
    assert report.decomposition is None
    assert {bar.end for bar in report.bars} == {"before"}
    page = Page(render_html(report))
    assert page.errors == []
    assert "Nothing tried was better." in page.text
    assert report.winner is not None
    assert report.winner.detail == "Nothing beat the baseline beyond its noise."


def test_campaign_without_time_for_a_trial(tmp_path: Path) -> None:
    options = OPTIONS.model_copy(update={"max_trials": 0})
    report = build_report(run_campaign(tmp_path, options=options))
    assert {row.state for row in report.experiments} == {"skipped"}
    text = Page(render_html(report)).text
    assert "No experiment was run." in text
    assert "Nothing tried was better" not in text


def test_winner_without_speculation(tmp_path: Path) -> None:
    report = without_speculation(tmp_path)
    assert report.after is not None
    assert report.after.speculative_tok_s is None
    assert report.decomposition is None
    assert [(bar.end, bar.arm) for bar in report.bars] == [
        ("before", "plain"),
        ("before", "speculative"),
        ("after", "plain"),
    ]
    page = Page(render_html(report))
    assert page.errors == []
    assert "Speculation is off" in page.text
    assert render_markdown(report)


def test_folder_without_a_campaign(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must hold a campaign"):
        build_report(tmp_path)


def test_launch_command_of_another_server_needs_that_server(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    with closing(sqlite3.connect(copy / "ledger.sqlite")) as connection, connection:
        connection.execute("DROP TRIGGER documents_no_update")
        connection.execute("UPDATE documents SET document = replace(document, '\"builtin\"', '\"sglang\"')")
    with pytest.raises(ConfigError, match="'sglang' server"):
        build_report(copy)
    winner = build_report(copy, SERVER).winner
    assert winner is not None
    assert winner.launch_command == "none"


def load_render_page() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("render_page", str(RENDER_PAGE))
    spec = importlib.util.spec_from_loader("render_page", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def png_size(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", head[16:24])


def test_page_renders_in_a_browser(html: str, tmp_path: Path) -> None:
    if load_render_page().find_browser() is None:
        pytest.skip("no chromium or google-chrome on PATH; the structure is tested without it")
    page, png, blank = tmp_path / "report.html", tmp_path / "report.png", tmp_path / "blank.png"
    page.write_text(html)
    (tmp_path / "blank.html").write_text("<!doctype html><title>blank</title>")
    for source, target in ((page, png), (tmp_path / "blank.html", blank)):
        command = [sys.executable, str(RENDER_PAGE), str(source), str(target), "--height", "1600"]
        subprocess.run(command, check=True, capture_output=True, timeout=90)
    assert png_size(png) == (1120, 1600)
    assert png.stat().st_size > 10 * blank.stat().st_size, "text and bars compress worse than white"
