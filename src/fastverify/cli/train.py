"""`fastverify train target` and `fastverify train draft`: train, resume by running the same command, and export."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fastverify.cli.console import err, print_json, print_text

if TYPE_CHECKING:
    from fastverify.training.loop import Progress as TrainingProgress

app = typer.Typer(
    help="Train the target model or its EAGLE-3 head; the same command again resumes.", no_args_is_help=True
)

CorpusOption = Annotated[Path, typer.Option(help="Folder that scripts/build_corpus.py wrote.")]
FolderOption = Annotated[Path, typer.Option("--out", help="Folder for the state, the loss log and the model.")]
MinutesOption = Annotated[float, typer.Option(min=0.01, help="Training time; the schedule ends with it.")]
BatchOption = Annotated[int, typer.Option(min=1, help="Sequences per step.")]
WindowOption = Annotated[int, typer.Option(min=8, help="Tokens per sequence.")]
RateOption = Annotated[float, typer.Option("--lr", help="Peak learning rate.")]
SeedOption = Annotated[int, typer.Option(help="Seed of weights and batches.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
StepsOption = Annotated[int, typer.Option(min=0, help="Stop after this many steps; 0 leaves it to the clock.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("target")
def train_target_command(
    folder: FolderOption,
    corpus: CorpusOption = Path(".corpus"),
    minutes: MinutesOption = 8.5,
    batch_size: BatchOption = 128,
    window: WindowOption = 1024,
    peak_lr: RateOption = 4e-3,
    seed: SeedOption = 2026,
    device: DeviceOption = "auto",
    compile_model: Annotated[bool, typer.Option("--compile/--no-compile", help="Use torch.compile.")] = False,
    max_steps: StepsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Train the 10-million-parameter target on the corpus."""
    from fastverify.training.export import export_target
    from fastverify.training.target import TargetOptions, train_target

    options = TargetOptions(
        corpus=corpus,
        folder=folder,
        minutes=minutes,
        batch_size=batch_size,
        window=window,
        peak_lr=peak_lr,
        seed=seed,
        device=device,
        compile=compile_model,
        max_steps=max_steps,
    )
    with _progress_bar("target") as report:
        model = train_target(options, report)
    export_target(model, corpus / "tokenizer.json", folder / "model")
    _say_where(folder, as_json)


@app.command("draft")
def train_draft_command(
    folder: FolderOption,
    target: Annotated[Path, typer.Option(help="Folder of the target model.")],
    corpus: CorpusOption = Path(".corpus"),
    minutes: MinutesOption = 5.0,
    init_from: Annotated[Path | None, typer.Option(help="Existing EAGLE-3 head to fine-tune to this target.")] = None,
    capture_layers: Annotated[str, typer.Option(help="Three streams the head reads, such as 2,5,7.")] = "",
    draft_vocab_size: Annotated[int, typer.Option(min=0, help="Most frequent tokens to draft; 0: all.")] = 0,
    own_sequences: Annotated[int, typer.Option(min=2, help="Sequences of the target's own text.")] = 49_152,
    batch_size: BatchOption = 64,
    window: WindowOption = 512,
    peak_lr: RateOption = 2e-3,
    seed: SeedOption = 2026,
    device: DeviceOption = "auto",
    max_steps: StepsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Train an EAGLE-3 head for a target, from scratch or from an existing head."""
    from fastverify.training.draft import DraftOptions, train_draft
    from fastverify.training.export import export_draft

    options = DraftOptions(
        corpus=corpus,
        target=target,
        folder=folder,
        minutes=minutes,
        init_from=init_from,
        capture_layers=_parse_layers(capture_layers),
        draft_vocab_size=draft_vocab_size,
        own_sequences=own_sequences,
        batch_size=batch_size,
        window=window,
        peak_lr=peak_lr,
        seed=seed,
        device=device,
        max_steps=max_steps,
    )
    with _progress_bar("draft") as report:
        head = train_draft(options, report)
    export_draft(head, folder / "model")
    _say_where(folder, as_json)


def _parse_layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise typer.BadParameter(f"--capture-layers takes numbers such as 2,5,7, got {text!r}.") from None


def _say_where(folder: Path, as_json: bool) -> None:
    model, log = folder / "model", folder / "training_log.jsonl"
    if as_json:
        print_json({"schema_version": 1, "model": str(model), "log": str(log)})
    else:
        print_text(f"model: {model}\nlog:   {log}")


@contextmanager
def _progress_bar(what: str) -> Iterator[Callable[[TrainingProgress], None]]:
    columns = (
        TextColumn("training the {task.description}"),
        BarColumn(),
        TextColumn("step {task.fields[step]}, loss {task.fields[loss]:.3f}, {task.fields[rate]:,.0f} tokens/s"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err) as bar:
        task = bar.add_task(what, total=None, step=0, loss=float("nan"), rate=0.0)

        def report(progress: TrainingProgress) -> None:
            bar.update(
                task,
                total=progress.total_s,
                completed=progress.elapsed_s,
                step=progress.step,
                loss=progress.loss,
                rate=progress.tokens_per_s,
            )

        yield report
