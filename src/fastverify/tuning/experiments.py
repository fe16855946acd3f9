"""What an experiment is, and the catalogue of the built-in engine.

An experiment is data: which settings it changes, what it excludes, how risky and how long it is, and how to see that it
took effect. Its effect on both arms is the cost model's business. Knows the names of settings, not how a server applies
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from fastverify.servers.server import Setting
from fastverify.tuning import engagement
from fastverify.tuning.engagement import Prover
from fastverify.tuning.knobs import Knobs, chain_of, merge_settings

Risk = Literal["safe", "guarded", "host"]
DRAFT_LENGTHS = range(1, 9)
# Arbitrary: three branches at depth k and 2k kept nodes double the verify rows, as the published (3, 3, 8) trees do.
TREE_TOP_K = 3


@dataclass(frozen=True)
class Experiment:
    """One change of settings. `conflicts` are ids of experiments after which this one means nothing."""

    id: str
    title: str
    why: str
    changes: Mapping[str, Setting]
    risk: Risk = "safe"
    exclusive_group: str | None = None
    conflicts: tuple[str, ...] = ()
    effort_min: float = 0.2
    """Minutes of a person or a machine to try it once."""
    probability: float = 0.9
    """That it works at all and its gain is real, before anything was tried."""
    same_drafts: bool = True
    """Whether the acceptance length must stay as it was."""
    counted: Prover | None = None
    """What the server's counters must show; None where resolved settings are all there is."""

    def changes_nothing(self, settings: Mapping[str, Setting]) -> bool:
        """Whether these settings already are what it would make them."""
        return Knobs.from_settings(merge_settings(settings, self.changes)) == Knobs.from_settings(settings)


_WITHOUT_DRAFT_MODEL = ("drafter.ngram", "drafter.none")


def builtin_catalogue(settings: Mapping[str, Setting], backends: Iterable[str] = ()) -> tuple[Experiment, ...]:
    """Experiments of the built-in engine that change something in `settings`.

    `backends` are the all-reduce backends that the benchmark knows, whether they ran or not.
    """
    known = dict.fromkeys(("shm", *backends))
    entries = [
        *(_backend(name) for name in known if name != "gloo"),
        _FUSED_NORM,
        _REPLICATED,
        _LOCAL_ARGMAX,
        *(_chain(num_drafts) for num_drafts in DRAFT_LENGTHS),
        _tree(Knobs.from_settings(settings).num_draft_steps),
        _NGRAM,
        _NONE,
    ]
    return tuple(entry for entry in entries if not entry.changes_nothing(settings))


def _backend(name: str) -> Experiment:
    return Experiment(
        id=f"comm.{name}",
        title=f"All-reduce over {name}",
        why="Every pass of both arms waits for 2L + 1 all-reduces one after the other.",
        changes={"comm_backend": name},
        exclusive_group="comm_backend",
        probability=0.95,
    )


def _chain(num_drafts: int) -> Experiment:
    return Experiment(
        id=f"draft.k{num_drafts}",
        title=f"Chain of {num_drafts} draft{'s' if num_drafts > 1 else ''}",
        why="One more draft pays while its tokens per added millisecond exceed those of the cycle so far.",
        changes=chain_of(num_drafts),
        exclusive_group="draft_shape",
        conflicts=_WITHOUT_DRAFT_MODEL,
        same_drafts=False,
        counted=engagement.proposes(num_drafts),
    )


def _tree(num_draft_steps: int) -> Experiment:
    steps = max(num_draft_steps, 2)
    return Experiment(
        id="draft.tree",
        title=f"Draft tree: depth {steps}, {TREE_TOP_K} branches, {2 * steps} drafts kept",
        why="Second choices are often right where the first is not; the verify pass pays with more rows.",
        changes={
            "draft_shape": "tree",
            "top_k": TREE_TOP_K,
            "num_draft_steps": steps,
            "num_proposed_drafts": 2 * steps,
        },
        exclusive_group="draft_shape",
        conflicts=_WITHOUT_DRAFT_MODEL,
        probability=0.6,
        same_drafts=False,
        counted=engagement.proposes(2 * steps),
    )


_FUSED_NORM = Experiment(
    id="comm.fused_norm",
    title="All-reduce, residual add and RMSNorm in one call",
    why="The norm follows every all-reduce; in one call its tensor is still in cache and its launches are gone.",
    changes={"fuse_rmsnorm": True},
    risk="guarded",
    counted=engagement.fused_calls,
)
_REPLICATED = Experiment(
    id="draft.replicated",
    title="Whole draft model on every rank",
    why="A draft model of one layer computes little, but sharded it waits for collectives at every step.",
    changes={"draft_placement": "replicated"},
    conflicts=_WITHOUT_DRAFT_MODEL,
    probability=0.8,
    counted=engagement.no_draft_collectives,
)
_LOCAL_ARGMAX = Experiment(
    id="draft.local_argmax",
    title="Exchange one (value, token) pair per rank instead of draft logits",
    why="A greedy draft needs the best token only, not the logits of the whole vocabulary.",
    changes={"draft_token_exchange": "local_argmax"},
    conflicts=("draft.replicated", *_WITHOUT_DRAFT_MODEL),
    counted=engagement.small_draft_gathers,
)
_NGRAM = Experiment(
    id="drafter.ngram",
    title="N-gram drafts (prompt lookup) instead of the draft model",
    why="Costs almost nothing per cycle; pays where the output repeats the prompt.",
    changes={"drafter": "ngram", "draft_shape": "chain", "top_k": 1},
    exclusive_group="drafter",
    conflicts=("drafter.none",),
    probability=0.4,
    same_drafts=False,
)
_NONE = Experiment(
    id="drafter.none",
    title="Speculation off",
    why="Below the break-even acceptance length, plain decoding is faster.",
    changes={"drafter": "none"},
    exclusive_group="drafter",
    conflicts=("drafter.ngram",),
    probability=1.0,
    same_drafts=False,
    counted=engagement.no_speculative_arm,
)
