"""Writes a report's answer and plan into a folder: documents, a ledger with every experiment, and their scripts.

A folder is written once; the ledger in it is append-only, so that what was predicted stays beside what is measured.
"""

from __future__ import annotations

import json
from pathlib import Path

from fastverify.diagnosis.answer import Answer
from fastverify.diagnosis.reported import LaunchFacts, ReportedFacts
from fastverify.errors import ConfigError
from fastverify.tuning.ledger import Ledger
from fastverify.tuning.serve_script import serve_script
from fastverify.tuning.server_plan import ServerPlan
from fastverify.tuning.server_plan_page import answer_page
from fastverify.tuning.server_plan_text import answer_markdown

ANSWER_FILE = "diagnosis.json"
PLAN_FILE = "plan.json"
MARKDOWN_FILE = "eagle-fast-verify.md"
PAGE_FILE = "diagnosis.html"
LEDGER_FILE = "experiments.sqlite"
SCRIPTS = "experiments"


def write_plan(folder: Path, facts: ReportedFacts, answer: Answer, plan: ServerPlan | None) -> tuple[Path, ...]:
    """Write everything; returns the files. Raises ConfigError for a folder that holds a diagnosis already."""
    if (folder / ANSWER_FILE).exists() or (folder / LEDGER_FILE).exists():
        raise ConfigError(f"{folder} holds a diagnosis or a campaign already. Give another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        ANSWER_FILE: answer.model_dump_json(indent=2) + "\n",
        MARKDOWN_FILE: answer_markdown(answer, plan),
        PAGE_FILE: answer_page(answer, plan),
    }
    if plan is not None:
        texts[PLAN_FILE] = plan.model_dump_json(indent=2) + "\n"
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    written = [folder / name for name in texts]
    if plan is not None:
        written += _scripts(folder / SCRIPTS, facts.launch, plan)
        written.append(_ledger(folder / LEDGER_FILE, facts, plan))
    return tuple(written)


def _scripts(folder: Path, launch: LaunchFacts, plan: ServerPlan) -> list[Path]:
    """One folder per possible experiment, numbered by rank."""
    paths = []
    for rank, experiment in enumerate(plan.possible, start=1):
        path = folder / f"{rank:02d}-{experiment.id}" / "serve.sh"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(serve_script(plan.server, launch, experiment), encoding="utf-8")
        path.chmod(0o755)
        paths.append(path)
    return paths


def _ledger(path: Path, facts: ReportedFacts, plan: ServerPlan) -> Path:
    """Every experiment pending, the refused ones skipped with their reason."""
    with Ledger.open(path) as ledger, ledger.transaction():
        ledger.put_document("facts", facts.model_dump_json(exclude_unset=True))
        ledger.put_document("plan", json.dumps({"created_at": plan.created_at, "server": plan.server}))
        ledger.add_experiments([(entry.id, entry.model_dump_json()) for entry in plan.experiments])
        for entry in plan.experiments:
            if entry.refusal is not None:
                ledger.set_state(entry.id, "skipped", entry.refusal)
    return path
