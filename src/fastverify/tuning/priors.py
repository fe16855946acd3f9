"""Every number that the cost model assumes instead of measuring, with its source. Each ends up in the plan's text.

A prior is a low, a middle and a high value. It only counts until the first trial of its kind has been measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastverify.tuning.interval import Interval


@dataclass(frozen=True)
class Prior:
    """An assumed interval, what it stands for, where it comes from, and what would replace it by a measurement."""

    name: str
    value: Interval
    text: str
    source: str
    settles: str


def _interval(low: float, mid: float, high: float) -> Interval:
    return Interval(low=low, mid=mid, high=high)


SKEW = Prior(
    "skew",
    _interval(0.0, 0.06, 0.25),
    "a rank waits for the other at every collective for this share of the compute between two collectives",
    "measured on 2 quiet cores: 6 to 8 us per shm all-reduce, 2 to 3 in the benchmark, 60 to 80 us of compute between",
    "a trial with the new backend",
)
COMPUTE_RELIEF = Prior(
    "compute_relief",
    _interval(0.35, 0.5, 0.85),
    "compute takes this share of its time once ranks no longer sleep in gloo, whose threads share their cores",
    "measured on 2 quiet cores, ms with gloo and with shm: plain compute 2.4 and 1.0, verify compute 2.5 and 1.3",
    "a trial with the new backend",
)
NO_ROW = Prior(
    "no_row",
    _interval(0.02, 0.3, 1.0),
    "a backend without a row in the all-reduce table takes this share of the present one's time",
    "arbitrary: somewhere between free and no gain",
    "`fastverify bench all-reduce`",
)
GATHER = Prior(
    "gather",
    _interval(0.6, 1.0, 1.6),
    "an all-gather takes this multiple of the time of an all-reduce of the same message size",
    "both move (n - 1) messages to every rank; neither is measured apart",
    "a trial with the new backend",
)
NORM_US = Prior(
    "norm_us",
    _interval(8.0, 24.0, 40.0),
    "one separate residual add and RMSNorm, in microseconds",
    "measured on a CPU: 24 us less compute per all-reduce in a plain and in a verify pass of the bundled model",
    "a trial of comm.fused_norm",
)
GPU_NORM_US = Prior(
    "norm_us",
    _interval(1.0, 2.5, 4.0),
    "one separate residual add and RMSNorm, in microseconds",
    "one kernel of a few rows in a CUDA graph; an empty one takes 0.63 us (measured on H200)",
    "a trial of comm.fusion",
)
ROW_SLOPE = Prior(
    "row_slope",
    _interval(0.5, 1.0, 1.6),
    "compute of a verify pass grows by this multiple of the line through the two measured row counts",
    "tile and cache steps make the growth uneven (MoESD, arXiv:2505.19645)",
    "a trial with another number of proposed drafts",
)
CHOICE_SHARE = Prior(
    "choice_share",
    _interval(0.15, 0.3, 0.5),
    "part of a draft step's compute that chooses the token (logits and arg-max), the rest is the layer",
    "estimate: one matrix of a vocabulary of 4096 against one layer of the draft model, both short",
    "a trial with another number of draft steps",
)
EXTEND_TO_DRAFT = Prior(
    "extend_to_draft",
    _interval(0.5, 0.8, 1.1),
    "a draft pass costs this share of the extend pass, which has more rows and one more projection",
    "same layer, fewer rows",
    "a trial with two draft steps or more",
)
UNKNOWN_DRAFT = Prior(
    "unknown_draft",
    _interval(0.08, 0.18, 0.4),
    "a pass of a draft model that was never measured here costs this share of the verify pass",
    "one layer and a head against the whole target; vllm#45258 measured 18 % for all drafts of a step",
    "a trial with the draft model",
)
TREE_GAIN = Prior(
    "tree_gain",
    _interval(1.0, 1.12, 1.3),
    "a tree accepts this multiple of a chain of the same depth",
    "SpecForge#339: 1.86 for steps 3, 1.99 and 2.20 for trees of 3 and 7 drafts",
    "a trial of draft.tree",
)
TREE_WIDTH = Prior(
    "tree_width",
    _interval(1.0, 1.15, 1.6),
    "a draft pass over the branches of a tree costs this multiple of a pass over one row",
    "arbitrary: a few rows more in a pass bound by reading weights",
    "a trial of draft.tree",
)
TREE_HOST_MS = Prior(
    "tree_host_ms",
    _interval(0.1, 0.4, 1.2),
    "building, re-ranking and masking a tree, in ms per cycle",
    "arbitrary: tens of small tensor operations",
    "a trial of draft.tree",
)
NGRAM_ACCEPT_LENGTH = Prior(
    "ngram_accept_length",
    _interval(1.05, 1.7, 2.6),
    "acceptance length of n-gram drafts",
    "1.66 to 1.98 on the bundled prompts; vllm#19254: 2.16 to 2.83 where text repeats itself, vllm#8439: a loss",
    "a trial of drafter.ngram",
)
NGRAM_DRAFT_MS = Prior(
    "ngram_draft_ms",
    _interval(0.01, 0.06, 0.4),
    "one prompt lookup, in ms per cycle",
    "a scan of a thousand tokens; vllm#16883 shows how it grows with long prompts",
    "a trial of drafter.ngram",
)


def replicated_factor(world_size: int) -> Prior:
    """Growth of a draft model's compute when every rank runs all of it."""
    return Prior(
        "replicated",
        _interval(1.0, 1.0 + 0.35 * (world_size - 1), float(max(world_size, 1))),
        "compute of a replicated draft model against a sharded one",
        f"between launch-bound (1) and bound by reading weights ({world_size}, the number of ranks)",
        "a trial of draft.replicated",
    )
