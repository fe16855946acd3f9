"""Settings of one engine: what runs, on how many ranks, and how drafts are made and verified.

Every rule that can be checked without reading the model is checked here; the flags of `fastverify serve` and
`fastverify generate` are these fields in kebab-case. Knows no torch, no model file and no hardware.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, get_args

from fastverify.errors import ConfigError

BUNDLED = "bundled"
NONE = "none"

CommBackendName = Literal["auto", "gloo", "shm"]
DrafterName = Literal["eagle3", "ngram", "none"]
DraftShape = Literal["chain", "tree"]
DraftPlacement = Literal["sharded", "replicated"]
DraftTokenExchange = Literal["gather_logits", "local_argmax"]
DtypeName = Literal["float32", "bfloat16", "float16"]

_CHOICES = {
    "comm_backend": get_args(CommBackendName),
    "drafter": get_args(DrafterName),
    "draft_shape": get_args(DraftShape),
    "draft_placement": get_args(DraftPlacement),
    "draft_token_exchange": get_args(DraftTokenExchange),
    "dtype": get_args(DtypeName),
}
_AT_LEAST_ONE = (
    "tp_size",
    "num_draft_steps",
    "top_k",
    "ngram_min",
    "max_batch",
    "max_seq_len",
    "prefill_chunk",
    "num_threads",
)
# Arbitrary: drafts beyond this depth are almost never accepted, and the growth of a tree is exponential in it.
MAX_DRAFT_STEPS = 16
# Arbitrary: bounds the rows of a verify pass and the size of the tree masks.
MAX_PROPOSED_DRAFTS = 64


@dataclass(frozen=True)
class EngineConfig:
    """All settings of an engine. Raises ConfigError for values that break a rule."""

    model: str = BUNDLED
    """Folder of a Hugging Face checkpoint, or "bundled"."""
    draft: str = BUNDLED
    """Folder of an EAGLE-3 head, "bundled" (fits the bundled target only), or "none"."""
    tp_size: int = 2
    comm_backend: CommBackendName = "auto"
    fuse_rmsnorm: bool = True
    """Whether the all-reduce, the residual add and the RMSNorm run as one call of the backend."""
    drafter: DrafterName = "eagle3"
    draft_shape: DraftShape = "chain"
    num_draft_steps: int = 3
    """Depth of the draft: tokens of a chain, levels of a tree."""
    top_k: int = 1
    """Branching of a tree; 1 for a chain."""
    num_proposed_drafts: int | Literal["auto"] = "auto"
    """Draft tokens verified per request and pass. "auto": num_draft_steps for a chain, 2 * num_draft_steps for a tree
    (or all its nodes, where fewer). Resolved to a number at construction."""
    draft_placement: DraftPlacement = "sharded"
    """"replicated": every rank runs the whole draft model and its draft needs no collective."""
    draft_token_exchange: DraftTokenExchange = "gather_logits"
    """"local_argmax": greedy chain drafts exchange one (value, id) pair per rank instead of the logits."""
    ngram_min: int = 1
    ngram_max: int = 3
    dtype: DtypeName = "float32"
    max_batch: int = 16
    max_seq_len: int = 1024
    """Prompt and output tokens of one request together."""
    prefill_chunk: int = 256
    """Prompt rows computed between two decoding cycles."""
    seed: int = 0
    """Seed of requests that bring none of their own."""
    num_threads: int = 1
    """Compute threads of each rank."""

    def __post_init__(self) -> None:
        self._check_values()
        self._check_draft_model()
        self._check_draft_shape()
        object.__setattr__(self, "num_proposed_drafts", self._resolve_num_proposed_drafts())

    @property
    def num_verify_tokens(self) -> int:
        """Rows of one request in a verify pass: its proposed drafts and its current token."""
        assert self.num_proposed_drafts != "auto", "resolved in __post_init__"
        return self.num_proposed_drafts + 1

    def to_dict(self) -> dict[str, str | int | bool]:
        """Fields and resolved values, for `/server_info` and records."""
        return asdict(self)

    def _check_values(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {value!r}.")
        for name in _AT_LEAST_ONE:
            value = getattr(self, name)
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}.")
        if self.ngram_max < self.ngram_min:
            raise ConfigError(f"ngram_max must be at least ngram_min ({self.ngram_min}), got {self.ngram_max}.")
        if self.num_draft_steps > MAX_DRAFT_STEPS:
            raise ConfigError(f"num_draft_steps must be at most {MAX_DRAFT_STEPS}, got {self.num_draft_steps}.")

    def _check_draft_model(self) -> None:
        if self.drafter != "eagle3":
            return
        if self.draft == NONE:
            raise ConfigError("drafter eagle3 needs a head, got draft 'none'. Give its folder, or use drafter 'none'.")
        if self.draft == BUNDLED and self.model != BUNDLED:
            raise ConfigError(
                f"the bundled EAGLE-3 head fits the bundled target only, got model {self.model!r}. "
                "Give the folder of its own head with draft, or use drafter 'ngram' or 'none'."
            )

    def _check_draft_shape(self) -> None:
        if self.draft_shape == "chain" and self.top_k != 1:
            raise ConfigError(f"a chain has top_k 1, got {self.top_k}. Use draft_shape 'tree' for more branches.")

    def _resolve_num_proposed_drafts(self) -> int:
        if self.drafter == "none":
            return 0
        num_nodes = num_grown_nodes(self.num_draft_steps, self.top_k)
        count = self.num_proposed_drafts
        if count == "auto":
            return self.num_draft_steps if self.draft_shape == "chain" else min(2 * self.num_draft_steps, num_nodes)
        if self.draft_shape == "chain" and count != self.num_draft_steps:
            raise ConfigError(
                f"a chain proposes one draft per step: num_proposed_drafts must be {self.num_draft_steps} or 'auto', "
                f"got {count}. Change num_draft_steps instead."
            )
        if not 1 <= count <= min(num_nodes, MAX_PROPOSED_DRAFTS):
            raise ConfigError(
                f"a tree of {self.num_draft_steps} steps and top_k {self.top_k} keeps 1 to "
                f"{min(num_nodes, MAX_PROPOSED_DRAFTS)} nodes, got num_proposed_drafts {count}."
            )
        return count


def num_grown_nodes(num_draft_steps: int, top_k: int) -> int:
    """Nodes a draft tree grows before re-ranking: top_k at the first level, top_k children of top_k nodes later."""
    return top_k + (num_draft_steps - 1) * top_k * top_k


def parse_num_proposed_drafts(text: str) -> int | Literal["auto"]:
    """Value of the flag --num-proposed-drafts: a whole number or "auto"."""
    if text == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"num_proposed_drafts must be a whole number or 'auto', got {text!r}.") from None
