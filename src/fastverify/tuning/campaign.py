"""One campaign folder: the typed view of its ledger, and the files beside it.

Everything that a campaign knows is in the ledger; this module reads it back as values (baseline, noise, best settings),
so that a campaign that was killed at any point goes on from what is written. It launches nothing and decides nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from fastverify.errors import ConfigError, LedgerError
from fastverify.hardware import read_machine
from fastverify.servers.measurement import ServerMeasurement
from fastverify.servers.server import Prompt, Setting
from fastverify.tuning.all_reduce_table import AllReduceRow, AllReduceTable
from fastverify.tuning.gates import SelfNoise
from fastverify.tuning.ledger import ExperimentEntry, Ledger
from fastverify.tuning.outcome import MEASURED, Outcome
from fastverify.tuning.plan import Plan
from fastverify.tuning.plan_markdown import plan_markdown
from fastverify.tuning.trial import Purpose, TrialResult, TrialStart, TuneOptions

LEDGER_FILE = "ledger.sqlite"
PLAN_FILE = "plan.json"
PLAN_MARKDOWN_FILE = "eagle-fast-verify.md"


class CampaignDocument(BaseModel):
    """What a campaign was started with; a resumed one must be asked for the same."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    server: str
    settings: dict[str, Setting]
    prompts: tuple[Prompt, ...]
    options: TuneOptions
    all_reduce: tuple[AllReduceRow, ...]


class Confirmation(BaseModel):
    """Whether the winner beat the baseline again, launched in turn."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    confirmed: bool
    baseline_tok_s: tuple[float, ...]
    winner_tok_s: tuple[float, ...]
    detail: str


@dataclass(frozen=True)
class Trial:
    """One trial of the ledger, decoded. `result` is None while it runs."""

    trial_id: int
    at: str
    experiment_id: str | None
    start: TrialStart
    outcome: Outcome | None
    result: TrialResult | None

    @property
    def measurement(self) -> ServerMeasurement | None:
        """Samples of a trial that was measured and passed its gates."""
        return self.result.measurement if self.result and self.outcome in MEASURED else None


class Campaign:
    """A folder with a ledger that has its campaign document."""

    def __init__(self, folder: Path, ledger: Ledger, document: CampaignDocument) -> None:
        self.folder = folder
        self.ledger = ledger
        self.document = document
        self.table = AllReduceTable(document.all_reduce)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open a campaign to read or resume it. Raises ConfigError for a folder without one."""
        path = folder / LEDGER_FILE
        if not path.is_file():
            raise ConfigError(
                f"{folder} must hold a campaign ({LEDGER_FILE}), but has none. Start one with tune or plan."
            )
        ledger = Ledger.open(path)
        text = ledger.document("campaign")
        if text is None:
            raise LedgerError(f"{path} was created but its campaign never began. Remove it and start again.")
        try:
            return cls(folder, ledger, CampaignDocument.model_validate_json(text))
        except ValidationError as error:
            raise LedgerError(f"the campaign document of {path} cannot be read: {error}.") from error

    @classmethod
    def open_or_create(cls, folder: Path, document: CampaignDocument) -> Self:
        """Resume the campaign of a folder, or begin one. Raises ConfigError when the folder's campaign is another."""
        with Ledger.open(folder / LEDGER_FILE) as ledger, ledger.transaction():
            if ledger.document("campaign") is None:
                ledger.put_document("campaign", document.model_dump_json())
                ledger.put_document("machine", json.dumps(read_machine().to_dict()))
        campaign = cls.open(folder)
        changed = _differences(campaign.document, document)
        if changed:
            campaign.close()
            raise ConfigError(
                f"{folder} holds a campaign with other {', '.join(changed)}. Give another folder, or the same values."
            )
        return campaign

    def close(self) -> None:
        """Close the ledger."""
        self.ledger.close()

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Every trial, oldest first."""
        return tuple(
            Trial(
                trial_id=entry.trial_id,
                at=entry.at,
                experiment_id=entry.experiment_id,
                start=TrialStart.model_validate_json(entry.document),
                outcome=entry.outcome,
                result=TrialResult.model_validate_json(entry.result) if entry.result is not None else None,
            )
            for entry in self.ledger.trials()
        )

    @property
    def experiments(self) -> tuple[ExperimentEntry, ...]:
        """Every planned experiment with its newest state."""
        return self.ledger.experiments()

    def of_purpose(self, purpose: Purpose) -> tuple[Trial, ...]:
        """Measured trials of one purpose."""
        return tuple(trial for trial in self.trials if trial.start.purpose == purpose and trial.measurement is not None)

    @property
    def baseline(self) -> Trial | None:
        """The measured baseline."""
        return next(iter(self.of_purpose("baseline")), None)

    @property
    def best(self) -> Trial | None:
        """The newest kept experiment, or the baseline."""
        kept = [trial for trial in self.of_purpose("experiment") if trial.result is not None and trial.result.kept]
        return kept[-1] if kept else self.baseline

    @property
    def model_trial(self) -> Trial | None:
        """The newest kept trial that served both arms: what the cost model is calibrated on."""
        kept = [trial for trial in self.of_purpose("experiment") if trial.result is not None and trial.result.kept]
        both = [trial for trial in kept if trial.measurement is not None and "speculative" in trial.measurement.arms]
        return both[-1] if both else self.baseline

    @property
    def plan(self) -> Plan | None:
        """The plan, once written."""
        text = self.ledger.document("plan")
        return Plan.model_validate_json(text) if text is not None else None

    @property
    def noise(self) -> SelfNoise | None:
        """The baseline's own noise, once measured."""
        text = self.ledger.document("noise")
        return SelfNoise.model_validate_json(text) if text is not None else None

    @property
    def confirmation(self) -> Confirmation | None:
        """The last word on the winner, once spoken."""
        text = self.ledger.document("confirmation")
        return Confirmation.model_validate_json(text) if text is not None else None

    def put_plan(self, plan: Plan) -> None:
        """Store the plan with its experiments, and write its two files."""
        with self.ledger.transaction():
            self.ledger.put_document("plan", plan.model_dump_json())
            self.ledger.add_experiments([(entry.id, entry.model_dump_json()) for entry in plan.experiments])
        self.write_plan_files(plan)

    def write_plan_files(self, plan: Plan) -> None:
        """`plan.json` and `eagle-fast-verify.md`."""
        write_file(self.folder / PLAN_FILE, plan.model_dump_json(indent=2) + "\n")
        write_file(self.folder / PLAN_MARKDOWN_FILE, plan_markdown(plan))

    def put_once(self, name: str, model: BaseModel) -> None:
        """Store a document unless a run before stored it."""
        with self.ledger.transaction():
            if self.ledger.document(name) is None:
                self.ledger.put_document(name, model.model_dump_json())

    def log_path(self, trial_id: int, name: str) -> Path:
        """Where a trial's server writes."""
        return self.folder / "logs" / f"{trial_id:03d}-{name}.log"

    def write_measurement(self, trial_id: int, name: str, measurement: ServerMeasurement) -> None:
        """Copy of a measurement for other tools; the ledger holds the original."""
        path = self.folder / "measurements" / f"{trial_id:03d}-{name}.json"
        write_file(path, measurement.model_dump_json(indent=2) + "\n")

    @property
    def spent_s(self) -> float:
        """Time in trials so far, over every run of this campaign."""
        return sum(trial.result.elapsed_s for trial in self.trials if trial.result is not None)


def make_document(
    server: str,
    settings: dict[str, Setting],
    prompts: Sequence[Prompt],
    options: TuneOptions,
    rows: Iterable[AllReduceRow],
) -> CampaignDocument:
    """Document with the prompts that will really be used."""
    if len(prompts) < options.num_prompts:
        raise ConfigError(
            f"{options.num_prompts} prompts are asked for, got {len(prompts)}. Give more, or ask for fewer."
        )
    return CampaignDocument(
        server=server,
        settings=settings,
        prompts=tuple(prompts[: options.num_prompts]),
        options=options,
        all_reduce=tuple(rows),
    )


def write_file(path: Path, text: str) -> None:
    """Write beside it and rename, so that a reader or a kill never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _differences(old: CampaignDocument, new: CampaignDocument) -> list[str]:
    """What a resumed campaign may not change; the time budget and the benchmark's timings may."""
    pairs = {
        "server": (old.server, new.server),
        "settings": (old.settings, new.settings),
        "prompts": (old.prompts, new.prompts),
        "options": tuple(one.options.model_copy(update={"budget_s": None, "max_trials": None}) for one in (old, new)),
    }
    return [name for name, (before, now) in pairs.items() if before != now]
