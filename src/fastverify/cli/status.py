"""`fastverify status`: what is pending, running, done, failed or skipped, with predicted against measured."""

from __future__ import annotations

from fastverify.cli.campaign import existing_folder
from fastverify.cli.campaign_tables import experiments_table
from fastverify.cli.console import out, print_json, print_text
from fastverify.cli.tune import FolderArgument, JsonOption
from fastverify.tuning.status import CampaignStatus, campaign_status


def status(folder: FolderArgument = None, as_json: JsonOption = False) -> None:
    """List the experiments and trials of a campaign, also while it runs."""
    found = campaign_status(existing_folder(folder))
    if as_json:
        print_json({"schema_version": 1, **found.model_dump(mode="json")})
        return
    print_text(_headline(found))
    if found.experiments:
        out.print(experiments_table(found.experiments))


def _headline(found: CampaignStatus) -> str:
    states = [one.state for one in found.experiments]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)) or "no plan yet"
    runner = f"running as process {found.process_id}" if found.process_id else "not running"
    winner = {True: "; winner confirmed", False: "; winner not confirmed", None: ""}[found.confirmed]
    return f"{found.folder}: {runner}, {len(found.trials)} trials, {counts}{winner}"
