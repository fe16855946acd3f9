"""A campaign that is killed with -9 at random moments and started again, many times over, then allowed to end.

Run as a script: `killed_campaign.py FOLDER NUM_KILLS SEED`. Servers are replaced by a formula, so that the moments fall
between and inside ledger writes. Prints JSON: kills that hit a running campaign, ledger rows seen after each of them.
"""

import json
import os
import random
import signal
import sqlite3
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fastverify.servers.server import Prompt
from fastverify.tuning import tuner as tuner_module
from fastverify.tuning.trial import Run, TuneOptions
from tests.tuning.machine import BASELINE, Machine

SERVER: Any = SimpleNamespace(name="formula", launch_spec=lambda settings: SimpleNamespace(argv=("formula",)))


def formula_run(server: object, settings: dict, *args: object, **extra: object) -> Run:
    time.sleep(0.002)
    num_drafts = settings["num_draft_steps"] if settings.get("num_proposed_drafts") == "auto" else None
    changes = dict(settings) | ({"num_proposed_drafts": num_drafts} if num_drafts else {})
    return Run("ok", "", Machine().measure(changes), 0.002)


def make_tuner(folder: Path) -> tuner_module.Tuner:
    options = TuneOptions(num_prompts=1)
    return tuner_module.Tuner(folder, SERVER, BASELINE, [Prompt("a", "x")], Machine().table().rows, options)


def rows(path: Path) -> list[tuple]:
    if not path.is_file():
        return []
    connection = sqlite3.connect(path)
    try:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return [
            (table, *row)
            for table in ("trials", "results", "transitions")
            if table in tables
            for row in connection.execute(f"SELECT * FROM {table} ORDER BY 1")
        ]
    finally:
        connection.close()


def main(folder: Path, num_kills: int, seed: int) -> None:
    tuner_module.run_server = formula_run
    chance = random.Random(seed)
    seen: list[list[tuple]] = []
    num_hits = 0
    for _ in range(num_kills):
        child = os.fork()
        if child == 0:
            make_tuner(folder).run()
            os._exit(0)
        time.sleep(chance.uniform(0.0, 0.25))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        num_hits += os.WIFSIGNALED(status)
        seen.append(rows(folder / "ledger.sqlite"))
    one = make_tuner(folder)
    result = one.run()
    trials = [(trial.start.purpose, trial.experiment_id, trial.outcome) for trial in one.campaign.trials]
    one.close()
    final = set(rows(folder / "ledger.sqlite"))
    lost = [row for snapshot in seen for row in snapshot if row not in final]
    report = {"num_hits": num_hits, "lost": lost, "trials": trials, "result": result.to_json()}
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
