"""How a trial can end. `ok` and `slower` are measured; the others are failures that never end the campaign.

A trial that the machine interrupted (a kill, a power cut) is `interrupted`: it says nothing and is run again.
"""

from __future__ import annotations

from typing import Literal, get_args

Outcome = Literal[
    "ok", "slower", "crash", "hang", "wrong_output", "fallen_acceptance", "no_engagement", "error", "interrupted"
]
MEASURED: tuple[Outcome, ...] = ("ok", "slower")
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
MEANINGS: dict[Outcome, str] = {
    "ok": "ran, passed every gate, not slower than noise allows",
    "slower": "ran, passed every gate, slower",
    "crash": "the server did not start or ended while in use",
    "hang": "the server was alive and did not answer in time",
    "wrong_output": "outputs differ from the baseline beyond its own noise",
    "fallen_acceptance": "fewer drafts accepted than they should be, a sign of corruption",
    "no_engagement": "the setting did not take effect",
    "error": "the server answered with an error",
    "interrupted": "this process was killed; the trial is run again",
}
