"""The tuner: baseline twice, plan, experiments one by one on top of the best settings so far, confirmation.

Every step first looks into the ledger for what is done already, so a campaign that was killed goes on where it stopped.
A failed trial never ends the campaign; only a baseline that cannot be measured does. Prints nothing: see progress.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from fastverify.errors import ServerError
from fastverify.servers.measurement import ServerMeasurement
from fastverify.servers.server import Prompt, Server, Setting
from fastverify.tuning import budget, gates
from fastverify.tuning.acceptance import longest_chain
from fastverify.tuning.all_reduce_table import AllReduceRow
from fastverify.tuning.campaign import Campaign, Trial, make_document
from fastverify.tuning.campaign_lock import campaign_lock
from fastverify.tuning.confirmation import confirm
from fastverify.tuning.cost_model import CostModel
from fastverify.tuning.experiments import Experiment, builtin_catalogue
from fastverify.tuning.judging import TrialContext, judge_trial
from fastverify.tuning.knobs import Knobs, merge_settings
from fastverify.tuning.ledger import State
from fastverify.tuning.outcome import MEASURED
from fastverify.tuning.plan import Plan, PredictedEffect, make_plan
from fastverify.tuning.progress import Progress, SilentProgress
from fastverify.tuning.result import TuneResult, result_of
from fastverify.tuning.selection import Candidate, candidates
from fastverify.tuning.trial import SERVED_ARM_ONLY, Purpose, TrialStart, TuneOptions, run_server

Catalogue = Callable[[Mapping[str, Setting], Sequence[str]], Sequence[Experiment]]
# Arbitrary: a healthy change of settings never makes a request ten times slower.
TIMEOUT_OF_BASELINE = 10.0


class Tuner:
    """One campaign in one folder. `run` may be called again on the same folder after a kill, with the same settings."""

    def __init__(
        self,
        folder: Path,
        server: Server,
        settings: Mapping[str, Setting],
        prompts: Sequence[Prompt],
        all_reduce: Sequence[AllReduceRow],
        options: TuneOptions,
        *,
        catalogue: Catalogue = builtin_catalogue,
        progress: Progress | None = None,
    ) -> None:
        self._server = server
        self._options = options
        self._make_catalogue = catalogue
        self._progress = progress or SilentProgress()
        document = make_document(server.name, dict(settings), prompts, options, all_reduce)
        self.campaign = Campaign.open_or_create(folder, document)

    def close(self) -> None:
        """Close the ledger."""
        self.campaign.close()

    def measure_and_plan(self) -> Plan:
        """Measure the baseline and write the plan, unless that is done; nothing is tried."""
        with campaign_lock(self.campaign.ledger):
            self.campaign.ledger.recover()
            return self._plan()

    def run(self) -> TuneResult:
        """The whole campaign. Raises LedgerError when another one holds the folder, ServerError for a bad baseline."""
        with campaign_lock(self.campaign.ledger):
            self.campaign.ledger.recover()
            self._plan()
            while (candidate := self._next()) is not None:
                self._try(candidate)
            confirm(self.campaign, self._options, self._launch, self._progress)
        return result_of(self.campaign, self._server)

    def _plan(self) -> Plan:
        baseline = self._baseline("baseline")
        repeat = self._baseline("baseline_repeat")
        self.campaign.put_once("noise", gates.self_noise(_measured(baseline), _measured(repeat)))
        plan = self.campaign.plan
        if plan is None:
            measurement = _measured(baseline)
            backends = sorted({row.backend for row in self.campaign.table.rows})
            catalogue = self._make_catalogue(measurement.settings, backends)
            plan = make_plan(measurement, self.campaign.table, catalogue, noise=self._noise.tok_s)
            self.campaign.put_plan(plan)
            self._progress.note(plan.diagnosis.verdict.headline)
        self.campaign.write_plan_files(plan)
        return plan

    def _baseline(self, purpose: Literal["baseline", "baseline_repeat"]) -> Trial:
        done = self.campaign.of_purpose(purpose)
        if done:
            return done[0]
        title = "baseline" if purpose == "baseline" else "baseline again, for its own noise"
        trial = self._launch(purpose, title, self.campaign.document.settings, self._options.repeats)
        if trial.measurement is None:
            detail = trial.result.detail if trial.result else ""
            raise ServerError(f"a campaign needs a baseline that runs, but it ended as {trial.outcome}: {detail}")
        return trial

    def _next(self) -> Candidate | None:
        """The most promising experiment that still fits; everything else is skipped once nothing does."""
        pending = self._pending()
        best, model_trial = self.campaign.best, self.campaign.model_trial
        assert best is not None, "the baseline was measured"
        assert model_trial is not None, "the baseline was measured"
        if not pending:
            return None
        model = self._model(_measured(model_trial))
        ranked = candidates(pending, self._kept_ids(), model, self.campaign.table)
        against = ranked[0].against or self._no_room(ranked[0])
        if against is None:
            return ranked[0]
        for one in ranked:
            reason = one.against or against
            self.campaign.ledger.set_state(one.experiment.id, "skipped", reason)
            self._progress.skipped(one.experiment.title, reason)
        return None

    def _model(self, measurement: ServerMeasurement) -> CostModel:
        """Calibrated on one measurement; a chain's acceptance comes from the longest chain that any trial measured."""
        measured = [trial.measurement for trial in self.campaign.trials if trial.measurement is not None]
        knobs = Knobs.from_settings(measurement.settings)
        acceptance = longest_chain(measured) if knobs.has_draft_model and knobs.is_chain else None
        of_baseline = measurement.requested_settings == self.campaign.document.settings
        noise = gates.tok_s_noise(self._noise, of_baseline=of_baseline)
        return CostModel(measurement, self.campaign.table, noise=noise, acceptance=acceptance)

    def _try(self, candidate: Candidate) -> None:
        """One experiment on top of the best settings."""
        experiment, best = candidate.experiment, self.campaign.best
        assert best is not None, "the baseline was measured"
        settings = merge_settings(best.start.settings, experiment.changes)
        start = TrialStart(
            purpose="experiment",
            title=experiment.title,
            settings=settings,
            changes=dict(experiment.changes),
            base_trial_id=best.trial_id,
            predicted=PredictedEffect.of(candidate.prediction),
        )
        context = TrialContext(
            experiment=experiment,
            prediction=candidate.prediction,
            base=_measured(best),
            baseline=_measured(self.campaign.baseline),
            noise=self._noise,
            table=self.campaign.table,
            base_settings=best.start.settings,
            settings=settings,
            baseline_settings=self.campaign.document.settings,
        )
        expected_s = budget.trial_s(best, candidate.prediction, self._options.min_load_s)
        trial = self._run_trial(start, self._options.repeats, context, expected_s)
        if trial.result is not None and trial.result.kept:
            self._progress.note(f"kept: {experiment.title}")

    def _launch(self, purpose: Purpose, title: str, settings: Mapping[str, Setting], repeats: int) -> Trial:
        """A trial that tries nothing: a baseline or a confirmation."""
        start = TrialStart(purpose=purpose, title=title, settings=dict(settings), changes={})
        same = [trial for trial in self.campaign.trials if trial.start.settings == start.settings and trial.result]
        expected_s = same[-1].result.elapsed_s if same and same[-1].result else None
        return self._run_trial(start, repeats, None, expected_s)

    def _run_trial(
        self, start: TrialStart, repeats: int, context: TrialContext | None, expected_s: float | None
    ) -> Trial:
        """Start, run, judge, and write the end together with the experiment's new state."""
        experiment_id = context.experiment.id if context else None
        name = (experiment_id or start.purpose).replace(".", "-")
        self._progress.trial_started(start.purpose, start.title, expected_s)
        trial_id = self.campaign.ledger.start_trial(start.purpose, start.model_dump_json(), experiment_id)
        log_path = self.campaign.log_path(trial_id, name)
        run = run_server(
            self._server,
            start.settings,
            self.campaign.document.prompts,
            self._options,
            log_path=log_path,
            repeats=repeats,
            request_timeout_s=self._request_timeout_s(),
            served_arm_only=start.purpose in SERVED_ARM_ONLY,
            on_sample=self._progress.sample_taken,
        )
        outcome, result = judge_trial(run, context)
        result = result.model_copy(update={"log_path": str(log_path.relative_to(self.campaign.folder))})
        if run.measurement is not None:
            self.campaign.write_measurement(trial_id, name, run.measurement)
        state: State | None = None if context is None else "done" if outcome in MEASURED else "failed"
        self.campaign.ledger.finish_trial(
            trial_id, outcome, result.model_dump_json(), state=state, reason=result.reason
        )
        self._progress.trial_finished(start.title, outcome, result.reason)
        return self.campaign.trials[-1]

    @property
    def _noise(self) -> gates.SelfNoise:
        noise = self.campaign.noise
        assert noise is not None, "the noise is stored before the plan"
        return noise

    def _pending(self) -> list[Experiment]:
        """Planned experiments without an end, as the catalogue knows them."""
        measurement = _measured(self.campaign.baseline)
        backends = sorted({row.backend for row in self.campaign.table.rows})
        catalogue = {entry.id: entry for entry in self._make_catalogue(measurement.settings, backends)}
        return [
            catalogue[entry.experiment_id]
            for entry in self.campaign.experiments
            if entry.state == "pending" and entry.experiment_id in catalogue
        ]

    def _kept_ids(self) -> list[str]:
        return [
            trial.experiment_id
            for trial in self.campaign.of_purpose("experiment")
            if trial.experiment_id is not None and trial.result is not None and trial.result.kept
        ]

    def _no_room(self, candidate: Candidate) -> str | None:
        """Why no further experiment fits into the options, None where one does."""
        options = self._options
        experiments = [trial for trial in self.campaign.trials if trial.start.purpose == "experiment"]
        tried = [trial for trial in experiments if trial.outcome != "interrupted"]
        if options.max_trials is not None and len(tried) >= options.max_trials:
            return f"limit of {options.max_trials} trials"
        baseline, best = self.campaign.baseline, self.campaign.best
        assert baseline is not None, "the baseline was measured"
        assert best is not None, "the baseline was measured"
        next_s = budget.trial_s(best, candidate.prediction, options.min_load_s)
        reserved_s = options.confirm_pairs * budget.pair_s(baseline, next_s)
        return budget.shortage(options, self.campaign.spent_s, next_s, reserved_s)

    def _request_timeout_s(self) -> float:
        baseline = self.campaign.baseline
        if baseline is None:
            return max(self._options.min_request_timeout_s, 300.0)
        samples = [sample for arm in _measured(baseline).arms.values() for sample in arm.samples]
        slowest_s = max((sample.ttft_s + sample.decode_s for sample in samples), default=0.0)
        return max(self._options.min_request_timeout_s, TIMEOUT_OF_BASELINE * slowest_s)


def _measured(trial: Trial | None) -> ServerMeasurement:
    assert trial is not None, "only called for a trial that was measured"
    assert trial.measurement is not None, "only called for a trial that was measured"
    return trial.measurement
