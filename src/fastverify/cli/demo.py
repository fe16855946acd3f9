"""`fastverify demo`: the whole loop on this machine's CPU with the bundled model: measure, plan, tune, report.

Two tensor-parallel processes talk over gloo, the slow link, until the tuner finds out. Every number is measured here.
"""

from __future__ import annotations

from typing import Annotated

import typer

from fastverify.cli.campaign import (
    bundled_prompts,
    changed_settings,
    measure_all_reduce,
    new_folder,
    open_tuner,
)
from fastverify.cli.console import err
from fastverify.cli.plan import FolderOption, JsonOption
from fastverify.cli.tune import show_result
from fastverify.engine.config import EngineConfig
from fastverify.engine.model_folders import target_folder
from fastverify.servers.builtin import BuiltinServer
from fastverify.tuning.campaign import make_document
from fastverify.tuning.trial import TuneOptions

# What a server without fast collectives does: every piece works, and nothing is tuned.
BASELINE = EngineConfig(tp_size=2, comm_backend="gloo", fuse_rmsnorm=False, num_draft_steps=3)
SHOWN = ("tp_size", "comm_backend", "fuse_rmsnorm", "drafter", "num_draft_steps")
# Sized for two minutes on two cores: a launch costs about 4 s, a plain request over gloo about 2 s.
OPTIONS = TuneOptions(
    num_prompts=8, num_tokens=48, repeats=1, confirm_repeats=1, min_load_s=2.5, confirm_pairs=2, budget_s=140.0
)


def demo(
    folder: FolderOption = None,
    budget_s: Annotated[
        float, typer.Option(min=30, help="Seconds for all trials; what does not fit is skipped and says so.")
    ] = OPTIONS.budget_s or 0.0,
    as_json: JsonOption = False,
) -> None:
    """Run the whole loop on a CPU: a trained model, two ranks, slow collectives, and the way to fast ones."""
    folder = new_folder(folder)
    err.print(f"campaign folder: {folder} (about {budget_s:.0f} s; interrupt and resume with `fastverify tune`)")
    rows = measure_all_reduce(BASELINE, target_folder(BASELINE.model), iterations=60)
    options = OPTIONS.model_copy(update={"budget_s": budget_s})
    settings = changed_settings(BASELINE, SHOWN)
    document = make_document(BuiltinServer.name, settings, bundled_prompts("code"), options, rows)
    with open_tuner(folder, document) as tuner:
        result = tuner.run()
    show_result(result, folder, as_json)
