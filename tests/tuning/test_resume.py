"""kill -9 at random points: nothing written is lost or rewritten, nothing measured is measured again, and it ends."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
NUM_KILLS = 15


def test_a_campaign_survives_kills_at_any_point(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.tuning.killed_campaign", str(tmp_path / "killed"), str(NUM_KILLS), "7"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["num_hits"] >= 5, "too few kills hit a running campaign to mean anything"
    assert report["lost"] == []
    finished = Counter(
        (purpose, experiment) for purpose, experiment, outcome in report["trials"] if outcome != "interrupted"
    )
    once = {key: count for key, count in finished.items() if not key[0].startswith("confirm")}
    assert set(once.values()) == {1}, "a measured trial is not run again"
    assert finished["confirm_winner", None] == finished["confirm_baseline", None] == 2
    states = Counter(entry["state"] for entry in report["result"]["experiments"])
    assert set(states) <= {"done", "skipped", "failed"}
    assert report["result"]["winner"]["confirmed"] is True

    calm = subprocess.run([*command[:-3], str(tmp_path / "calm"), "0", "7"], cwd=ROOT, capture_output=True, text=True)
    undisturbed = json.loads(calm.stdout)["result"]
    assert report["result"]["winner"]["settings"] == undisturbed["winner"]["settings"]
    assert [entry["kept"] for entry in report["result"]["experiments"]] == [
        entry["kept"] for entry in undisturbed["experiments"]
    ]
