"""Training the target: it learns, it resumes as if it had never stopped, and it is refused what cannot work."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fastverify.errors import ConfigError
from fastverify.training.loop import LOG_FILE, LoopOptions, TrainingLoop
from fastverify.training.schedule import ClockSchedule
from fastverify.training.target import TargetTask, train_target
from tests.training.tiny import tiny_target_options


def read_log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / LOG_FILE).read_text().splitlines()]


def test_training_learns_the_templates(target_run: Path) -> None:
    held_out = [record["held_out/templates"] for record in read_log(target_run) if "held_out/templates" in record]
    uniform = torch.log(torch.tensor(384.0))
    assert held_out[-1] < 0.2 * uniform


def run_steps(corpus: Path, folder: Path, max_steps: int) -> dict[str, torch.Tensor]:
    """Train up to `max_steps` on a clock on which every step takes one second."""
    task = TargetTask(tiny_target_options(corpus, folder, 0))
    options = LoopOptions(folder, 12.0, 1e-2, {"seed": 1}, log_every=1, max_steps=max_steps)
    loop = TrainingLoop(task, options, now=lambda: float(loop.step))
    loop.run()
    return task.model.state_dict()


def test_resumed_run_continues_batches_rates_and_weights(corpus: Path, tmp_path: Path) -> None:
    straight = run_steps(corpus, tmp_path / "straight", 10)
    run_steps(corpus, tmp_path / "resumed", 5)
    resumed = run_steps(corpus, tmp_path / "resumed", 10)
    for name, weight in straight.items():
        assert torch.equal(weight, resumed[name]), name
    rates = [[r["lr"] for r in read_log(tmp_path / name) if "lr" in r] for name in ("straight", "resumed")]
    assert rates[0] == rates[1]
    assert rates[0][-1] < 0.5 * max(rates[0])


def test_resume_with_other_settings_names_them(corpus: Path, tmp_path: Path) -> None:
    options = tiny_target_options(corpus, tmp_path, 2)
    train_target(options)
    with pytest.raises(ConfigError, match=r"batch_size: 16 -> 8"):
        train_target(replace(options, batch_size=8))


def test_clock_ends_the_run(corpus: Path, tmp_path: Path) -> None:
    train_target(replace(tiny_target_options(corpus, tmp_path, 0), minutes=1 / 60))
    last = read_log(tmp_path)[-1]
    assert 1.0 <= last["elapsed_s"] < 5.0


def test_missing_corpus_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"build_corpus\.py"):
        train_target(tiny_target_options(tmp_path, tmp_path / "out", 1))


def test_schedule_warms_up_and_ends_low() -> None:
    schedule = ClockSchedule(100.0, warm_up_share=0.1, final_share=0.05)
    shares = [schedule.rate_share(float(second)) for second in range(101)]
    assert shares[0] > 0
    assert shares[10] == max(shares) == 1.0
    assert shares[100] == pytest.approx(0.05)
    assert shares[10:] == sorted(shares[10:], reverse=True)
    with pytest.raises(ConfigError, match="above 0"):
        ClockSchedule(0.0)
