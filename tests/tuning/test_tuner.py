"""Whole campaigns against the fake server: a real process per trial, simulated time."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fastverify.errors import ConfigError, LedgerError, ServerError
from fastverify.servers.server import Prompt
from fastverify.tuning.campaign import Campaign
from fastverify.tuning.campaign_lock import campaign_lock
from fastverify.tuning.experiments import builtin_catalogue
from fastverify.tuning.gates import NOISE_FLOOR
from fastverify.tuning.plan import Plan
from fastverify.tuning.status import campaign_status
from fastverify.tuning.trial import TuneOptions
from fastverify.tuning.tuner import Catalogue, Tuner
from tests.servers.fake_server import FakeBehaviour, FakeServer
from tests.tuning.machine import BASELINE, Machine

pytestmark = pytest.mark.server

PROMPTS = [Prompt(f"p{i}", f"def function_{i}():") for i in range(3)]
OPTIONS = TuneOptions(
    num_tokens=24, num_prompts=3, repeats=1, confirm_repeats=1, confirm_pairs=2, min_request_timeout_s=0.8
)
SETTINGS = {name: value for name, value in BASELINE.items() if name != "num_proposed_drafts"}


def behaviour(settings: Mapping[str, Any]) -> FakeBehaviour:
    """A healthy machine on which a collective costs 660 us over gloo and 20 us over shm."""
    measured = Machine().measure({**settings, "num_proposed_drafts": num_drafts(settings)})
    phases = dict(measured.arms["plain"].anatomy_ms)
    survival: tuple[float, ...] = ()
    if "speculative" in measured.arms:
        phases |= measured.arms["speculative"].anatomy_ms
        survival = measured.arms["speculative"].correct_drafts_per_position
    return FakeBehaviour(
        **{f"{phase}_ms": ms for phase, ms in phases.items()},
        per_position=",".join(f"{share:.4f}" for share in survival),
    )


def num_drafts(settings: Mapping[str, Any]) -> int:
    if settings["drafter"] == "none":
        return 0
    value = settings.get("num_proposed_drafts", "auto")
    return settings["num_draft_steps"] if value == "auto" else value


class Recorder:
    """Everything the tuner told, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.num_samples = 0

    def trial_started(self, purpose: str, title: str, expected_s: float | None) -> None:
        self.lines.append(f"start {title}")

    def sample_taken(self, done: int, planned: int) -> None:
        assert done <= planned
        self.num_samples += 1

    def trial_finished(self, title: str, outcome: str, detail: str) -> None:
        self.lines.append(f"{outcome} {title}")

    def skipped(self, title: str, reason: str) -> None:
        self.lines.append(f"skip {title}: {reason}")

    def note(self, text: str) -> None:
        self.lines.append(text)


def tuner(folder: Path, behaviour=behaviour, options: TuneOptions = OPTIONS, **extra: Any) -> Tuner:
    return Tuner(folder, FakeServer(behaviour), SETTINGS, PROMPTS, Machine().table().rows, options, **extra)


def run(folder: Path, *args: Any, **extra: Any):
    one = tuner(folder, *args, **extra)
    try:
        return one.run()
    finally:
        one.close()


def by_id(result) -> dict[str, Any]:
    return {entry.id: entry for entry in result.experiments}


def test_a_campaign_finds_and_confirms_the_fast_settings(tmp_path: Path) -> None:
    recorder = Recorder()
    tried = only("comm.shm", "comm.fused_norm", "draft.k4", "draft.tree", "drafter.none")
    result = run(tmp_path, progress=recorder, catalogue=tried)
    entries = by_id(result)
    assert entries["comm.shm"].kept
    assert result.winner.settings["comm_backend"] == "shm"
    assert result.winner.confirmed is True
    assert result.after.speculative_tok_s > 3 * result.before.speculative_tok_s
    assert result.after.plain_tok_s > 3 * result.before.plain_tok_s, "the plain arm has all-reduces too"
    assert result.after.verify_ms < result.before.verify_ms / 2
    assert result.before.all_reduces_per_verify == 17
    assert entries["drafter.none"].state == "skipped"
    assert "no gain beyond the noise" in entries["drafter.none"].reason
    assert not [entry for entry in result.experiments if entry.state in ("pending", "running")]
    assert result.median_prediction_error < 0.2
    assert "--comm-backend" in result.winner.launch_command or "fake_server" in result.winner.launch_command
    assert recorder.lines[0] == "start baseline"
    assert any(line.startswith("Speculation wins") for line in recorder.lines)
    check_files(tmp_path)
    status = campaign_status(tmp_path)
    assert recorder.num_samples == len(PROMPTS) * (2 * len(status.trials) - 3), "repeats of the baseline serve one arm"
    assert status.process_id is None
    assert status.confirmed is True
    assert [line.title for line in status.trials[:2]] == ["baseline", "baseline again, for its own noise"]
    assert [line.title for line in status.trials[-4:]] == [
        f"{side}, confirmation {pair}" for pair in (1, 2) for side in ("baseline", "winner")
    ]


def check_files(folder: Path) -> None:
    plan = Plan.model_validate_json((folder / "plan.json").read_text())
    text = (folder / "eagle-fast-verify.md").read_text()
    assert plan.diagnosis.verdict.headline in text
    for entry in plan.experiments:
        assert f"`{entry.id}`" in text
    assert list((folder / "logs").glob("*-comm-shm.log"))
    assert list((folder / "measurements").glob("*-comm-shm.json"))


BREAKS = {
    "comm.shm": ({"comm_backend": "shm"}, {"crash_after": 2}, "crash", "failed"),
    "draft.tree": ({"draft_shape": "tree"}, {"crash_at_start": 3}, "crash", "failed"),
    "comm.fused_norm": ({"fuse_rmsnorm": True}, {"wrong_output": True}, "wrong_output", "failed"),
    "comm.gated": ({"comm_backend": "gated"}, {"resolved": '{"comm_backend": "gloo"}'}, "no_engagement", "failed"),
    "draft.k2": ({"num_draft_steps": 2}, {"hang_after": 3}, "hang", "failed"),
    "draft.k4": ({"num_draft_steps": 4}, {"per_position": "0.3,0.1,0.05,0.02"}, "fallen_acceptance", "failed"),
    "draft.k5": ({"num_draft_steps": 5}, {"verify_compute_ms": 30.0}, "slower", "done"),
    "drafter.ngram": ({"drafter": "ngram"}, {"degenerate_output": True}, "wrong_output", "failed"),
}


def only(*ids: str) -> Catalogue:
    """The built-in catalogue without the rest."""
    return lambda settings, backends: [entry for entry in builtin_catalogue(settings, backends) if entry.id in ids]


def broken(settings: Mapping[str, Any]) -> FakeBehaviour:
    """Every experiment fails in its own way."""
    backend = settings["comm_backend"].replace("gated", "gloo")
    healthy = behaviour({**settings, "comm_backend": backend})
    for changes, fault, _, _ in BREAKS.values():
        if changes.items() <= settings.items():
            return replace(healthy, **fault)
    return healthy


def test_every_failure_has_its_class_and_none_ends_the_campaign(tmp_path: Path) -> None:
    rows = Machine().table().rows
    gated = [row.model_copy(update={"backend": "gated"}) for row in rows if row.backend == "shm"]
    one = Tuner(tmp_path, FakeServer(broken), SETTINGS, PROMPTS, [*rows, *gated], OPTIONS, catalogue=only(*BREAKS))
    result = one.run()
    one.close()
    entries = by_id(result)
    for name, (_, _, outcome, state) in BREAKS.items():
        assert (entries[name].outcome, entries[name].state) == (outcome, state), name
    assert not any(entries[name].kept for name in BREAKS)
    assert entries["comm.fused_norm"].measured_speedup is None, "a wrong output has no speed"
    assert entries["draft.k5"].measured_speedup < 1
    assert "exit code 70" in entries["comm.shm"].reason
    assert "outputs differ, first at token 5" in entries["comm.fused_norm"].reason
    assert result.winner.settings == SETTINGS
    assert result.winner.confirmed is None
    assert result.before == result.after


def test_a_tie_goes_to_the_simpler_settings(tmp_path: Path) -> None:
    """Two drafts are as fast as three, and shm is as fast as gloo: fewer drafts replace more, a change needs a gain."""

    def even(settings: Mapping[str, Any]) -> FakeBehaviour:
        count = num_drafts(settings)
        share = ",".join("0" for _ in range(count))
        return FakeBehaviour(per_position=share) if settings["drafter"] != "none" else FakeBehaviour(per_position="")

    result = run(
        tmp_path, even, options=OPTIONS.model_copy(update={"confirm_pairs": 0}), catalogue=only("draft.k2", "comm.shm")
    )
    entries = by_id(result)
    assert entries["draft.k2"].kept
    assert not entries["comm.shm"].kept
    assert abs(entries["comm.shm"].measured_speedup - 1) <= NOISE_FLOOR
    assert "the settings so far stay" in entries["comm.shm"].reason


def test_a_winner_that_cannot_repeat_is_not_the_winner(tmp_path: Path) -> None:
    launches = []

    def fickle(settings: Mapping[str, Any]) -> FakeBehaviour:
        launches.append(settings["comm_backend"])
        first_time = launches.count("shm") == 1
        return behaviour(settings if first_time else {**settings, "comm_backend": "gloo"})

    result = run(tmp_path, fickle, options=OPTIONS.model_copy(update={"confirm_pairs": 1}), catalogue=only("comm.shm"))
    assert by_id(result)["comm.shm"].kept
    assert result.winner.confirmed is False
    assert result.winner.settings == SETTINGS
    assert result.before == result.after


def test_limits_skip_visibly(tmp_path: Path) -> None:
    options = OPTIONS.model_copy(update={"max_trials": 1, "confirm_pairs": 0})
    result = run(tmp_path / "trials", options=options)
    states = {entry.state for entry in result.experiments if entry.id != "comm.shm"}
    assert states == {"skipped"}
    assert "limit of 1 trials" in {entry.reason for entry in result.experiments}
    assert result.winner.detail == "No confirmation was asked for."
    no_time = OPTIONS.model_copy(update={"budget_s": 0.001})
    result = run(tmp_path / "budget", options=no_time, catalogue=only("comm.shm", "draft.k2"))
    assert {entry.state for entry in result.experiments} == {"skipped"}
    assert by_id(result)["comm.shm"].reason.startswith("time budget of 0 s")


def test_a_backend_that_sums_wrongly_or_does_not_run_is_never_launched(tmp_path: Path) -> None:
    rows = [row.model_copy(update={"correct": False} if row.backend == "shm" else {}) for row in Machine().table().rows]
    missing = rows[0].model_copy(update={"backend": "nccl", "median_us": None, "correct": None, "reason": "no GPU"})
    launched = []

    def watched(settings: Mapping[str, Any]) -> FakeBehaviour:
        launched.append(settings["comm_backend"])
        return behaviour(settings)

    options = OPTIONS.model_copy(update={"max_trials": 1, "confirm_pairs": 0})
    one = Tuner(tmp_path, FakeServer(watched), SETTINGS, PROMPTS, [*rows, missing], options)
    result = one.run()
    one.close()
    assert set(launched) == {"gloo"}
    assert "wrong sums at" in by_id(result)["comm.shm"].reason
    assert "does not run here: no GPU" in by_id(result)["comm.nccl"].reason


def test_a_baseline_that_does_not_run_ends_the_campaign_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"(?s)baseline that runs, but it ended as crash.*cannot start with"):
        run(tmp_path, lambda settings: FakeBehaviour(crash_at_start=3))
    result = run(tmp_path, options=OPTIONS.model_copy(update={"max_trials": 0}))
    assert result.before.plain_tok_s > 0, "once it runs, the same folder goes on"


def test_a_second_campaign_is_refused_and_other_settings_too(tmp_path: Path) -> None:
    first = tuner(tmp_path)
    other_folder_settings = {**SETTINGS, "num_draft_steps": 4}
    with campaign_lock(first.campaign.ledger):
        second = tuner(tmp_path)
        # The lock belongs to this very process, which is alive: it counts as another campaign.
        with pytest.raises(LedgerError, match=r"one campaign at a time.*process \d+"):
            second.run()
        second.close()
    first.close()
    with pytest.raises(ConfigError, match="campaign with other settings"):
        Tuner(tmp_path, FakeServer(behaviour), other_folder_settings, PROMPTS, (), OPTIONS)
    with pytest.raises(ConfigError, match="must hold a campaign"):
        Campaign.open(tmp_path / "nothing")
