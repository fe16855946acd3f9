"""Training of an EAGLE-3 head for a frozen target: training-time test over the target's own text.

Draft step i of a row sees what it will see in use: its own earlier outputs instead of the target's hidden states. The
loss of step i is the cross-entropy to the target's next-token distribution at that place, weighted 0.8^i.
Source: arXiv:2503.01840, section 3.2; SafeAILab/EAGLE and SpecForge train the same way, with 7 steps.
T = packed rows, B = sequences, S = length, V = draft vocabulary, D = hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fastverify.comm.communicator import single_rank_communicator
from fastverify.errors import ConfigError
from fastverify.model_config import Eagle3Config, ModelConfig, read_eagle3_config, read_model_config
from fastverify.models.eagle3 import Eagle3Head
from fastverify.models.llama import LlamaForCausalLM
from fastverify.models.random_weights import initialize
from fastverify.models.weights import load_draft, load_target
from fastverify.training.attention import DraftStepAttention
from fastverify.training.corpus.build import TRAINING_FILE
from fastverify.training.data import TokenStream, load_token_file
from fastverify.training.evaluate import measure_acceptance, run_target, shifted
from fastverify.training.generate import generate
from fastverify.training.loop import LoopOptions, Progress, TrainingLoop
from fastverify.training.optimizers import build_optimizers
from fastverify.training.target import autocast, held_out_windows, resolve_device

STEP_WEIGHT = 0.8
TEMPERATURES = (0.0, 0.0, 0.7, 1.0)
VALIDATION_PROMPT = 128
VALIDATION_DRAFTS = 4


@dataclass(frozen=True)
class DraftOptions:
    """Everything that decides what a head becomes. The defaults made the bundled head.

    `own_sequences` of the target's own text, each `window` long, make up half of every batch; the corpus the other.
    `init_from` is an existing head to fine-tune; it keeps its sizes, vocabulary and capture layers.
    """

    corpus: Path
    target: Path
    folder: Path
    minutes: float
    init_from: Path | None = None
    capture_layers: tuple[int, ...] = ()
    draft_vocab_size: int = 0  # 0: the whole vocabulary
    num_draft_steps: int = 5
    window: int = 512
    batch_size: int = 64
    own_sequences: int = 49_152
    peak_lr: float = 2e-3
    weight_decay: float = 0.05
    seed: int = 2026
    device: str = "auto"
    max_steps: int = 0

    def settings(self) -> dict[str, Any]:
        """What must not change when a run resumes."""
        free = ("corpus", "target", "folder", "device", "max_steps", "init_from")
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items() if name not in free}


def default_capture_layers(num_layers: int) -> tuple[int, int, int]:
    """A low, a middle and a high stream: 2, 5 and 7 of 8 layers."""
    if num_layers < 3:
        raise ConfigError(
            f"an EAGLE-3 head reads three streams, but the target has {num_layers} layers. Use 3 or more."
        )
    return (min(2, num_layers // 4), num_layers * 5 // 8, num_layers - 1)


def draft_config(options: DraftOptions, target: ModelConfig) -> Eagle3Config:
    """Sizes of a new head: one layer like the target's own."""
    layers = options.capture_layers or default_capture_layers(target.num_layers)
    layer = replace(target, num_layers=1, tie_word_embeddings=False, qk_norm=False, qkv_bias=False)
    return Eagle3Config(
        layer=layer,
        draft_vocab_size=options.draft_vocab_size or target.vocab_size,
        target_hidden_size=target.hidden_size,
        capture_layers=layers,
        capture_rule="chosen for training",
    )


def load_models(options: DraftOptions, device: torch.device) -> tuple[LlamaForCausalLM, Eagle3Head]:
    """The frozen target, and the head to train: new, or the one of `init_from`."""
    communicator = single_rank_communicator()
    sizes = read_model_config(options.target)
    overriding = options.capture_layers or None
    config = (
        read_eagle3_config(options.init_from, sizes, overriding) if options.init_from else draft_config(options, sizes)
    )
    target = load_target(options.target, communicator, capture_layers=config.capture_layers)
    if options.init_from:
        head = load_draft(options.init_from, target, communicator, config=config).requires_grad_(True)
    else:
        head = _new_head(options, config, target)
    target.to(device)
    head.to(device)
    head.embed_tokens.requires_grad_(False)
    return target, head


def _new_head(options: DraftOptions, config: Eagle3Config, target: LlamaForCausalLM) -> Eagle3Head:
    """Random, but for the output head and final norm, which start as the target's."""
    communicator = single_rank_communicator()
    embedding = target.embed_tokens.weight.detach().clone()
    head = Eagle3Head(config, communicator, target.embed_tokens)
    initialize(head, options.seed)
    target_ids = frequent_tokens(options, config)
    with torch.no_grad():
        target.embed_tokens.weight.copy_(embedding)  # shared with the head, so `initialize` has overwritten it
        head.d2t.copy_(target_ids - torch.arange(len(target_ids)))
        head.head.weight.copy_(target.head.weight[target_ids])
        head.norm.copy_(target.norm)
    return head


def frequent_tokens(options: DraftOptions, config: Eagle3Config) -> torch.Tensor:
    """Ids of the draft vocabulary, ascending: the most frequent tokens of the corpus."""
    if config.draft_vocab_size == config.layer.vocab_size:
        return torch.arange(config.layer.vocab_size)
    stream = load_token_file(options.corpus / TRAINING_FILE, torch.device("cpu"))
    counts = torch.bincount(stream, minlength=config.layer.vocab_size)
    return counts.argsort(descending=True, stable=True)[: config.draft_vocab_size].sort().values


class DraftTask:
    """The head, its optimizers, the target's own text and the corpus, and held-out acceptance."""

    def __init__(self, options: DraftOptions) -> None:
        self._options, self._device = options, resolve_device(options.device)
        self._target, self.model = load_models(options, self._device)
        self.optimizers = build_optimizers(self.model, options.peak_lr, options.weight_decay, [self.model.head.weight])
        self.tokens_per_step = options.batch_size * options.window
        own_batch = options.batch_size // 2
        corpus = load_token_file(options.corpus / TRAINING_FILE, self._device)
        self._corpus = TokenStream(corpus, options.window, options.batch_size - own_batch, options.seed)
        own = own_text(self._target, corpus, options)
        self._own = TokenStream(own.flatten(), options.window, own_batch, options.seed + 1, is_shifted=False)
        draft_ids = torch.arange(self.model.config.draft_vocab_size, device=self._device)
        self._target_ids = self.model.to_target_ids(draft_ids)
        self._validation = self._validation_sequences()

    def loss(self, step: int) -> torch.Tensor:
        """Weighted loss of all draft steps on batch `step`."""
        batch = torch.cat((self._own.batch(step), self._corpus.batch(step)))
        with autocast(self._device):
            with torch.no_grad():
                output = run_target(self._target, batch)
                target_probs_BSV = self._draft_vocabulary_probs(output.hidden_TD).view(*batch.shape, -1)
            assert output.aux_TAD is not None, "the target captures what the head reads"
            return self._draft_steps_loss(batch, output.aux_TAD, target_probs_BSV)

    def _draft_steps_loss(
        self, batch: torch.Tensor, aux_TAD: torch.Tensor, target_probs_BSV: torch.Tensor
    ) -> torch.Tensor:
        num_sequences, length = batch.shape
        positions_T = torch.arange(length, device=batch.device).repeat(num_sequences)
        attention, hidden_TD = DraftStepAttention(num_sequences), self.model.fuse(aux_TAD)
        total = torch.zeros((), device=batch.device)
        for step in range(self._options.num_draft_steps):
            # Row t knows the tokens up to t + 1 + step and predicts the one after.
            hidden_TD = self.model(shifted(batch, step + 1).flatten(), hidden_TD, positions_T + step, attention)
            num_valid = length - 1 - step
            logits_BSV = self.model.logits(hidden_TD).view(*batch.shape, -1)[:, :num_valid]
            losses = soft_cross_entropy(logits_BSV, target_probs_BSV[:, 1 + step :])
            total = total + STEP_WEIGHT**step * losses.mean()
        return total

    def _draft_vocabulary_probs(self, hidden_TD: torch.Tensor) -> torch.Tensor:
        """The target's distribution restricted to the draft vocabulary; rows whose best token is outside are zero."""
        logits_TV = self._target.logits(hidden_TD).float()
        inside = logits_TV[:, self._target_ids]
        probs = inside.softmax(-1)
        is_best_inside = inside.amax(-1, keepdim=True) >= logits_TV.amax(-1, keepdim=True)
        return (probs * is_best_inside).to(torch.bfloat16 if self._device.type == "cuda" else torch.float32)

    def validate(self) -> dict[str, float]:
        """Greedy acceptance length on the continuations of held-out text, by source."""
        measured = {}
        with autocast(self._device):
            for name, sequences in self._validation.items():
                acceptance = measure_acceptance(
                    self._target, self.model, sequences, VALIDATION_PROMPT, VALIDATION_DRAFTS, temperature=0.0
                )
                measured[f"accept_length/{name}"] = acceptance.accept_length
        return measured

    def _validation_sequences(self) -> dict[str, torch.Tensor]:
        prompts = held_out_windows(self._options.corpus, VALIDATION_PROMPT, self._device)
        with autocast(self._device):
            return {
                name: generate(self._target, rows, 128, torch.zeros(len(rows), device=self._device))
                for name, rows in prompts.items()
            }


def soft_cross_entropy(logits: torch.Tensor, target_probs: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of each row to a whole distribution; a row of zeros costs nothing."""
    return -(target_probs * logits.float().log_softmax(-1)).sum(-1)


def own_text(target: LlamaForCausalLM, corpus: torch.Tensor, options: DraftOptions) -> torch.Tensor:
    """The target's continuations of random corpus prompts, int32 [about own_sequences, window].

    Half greedy, half sampled. Greedy ones start from longer prompts, because small models repeat themselves.
    """
    device, rounds = corpus.device, max(options.own_sequences // 4096, 1)
    per_round = min(options.own_sequences, 4096)
    prompt_stream = TokenStream(corpus, options.window, per_round, options.seed + 2)
    generator = torch.Generator(device=device).manual_seed(options.seed)
    pieces = []
    for number in range(rounds):
        temperature = TEMPERATURES[number % len(TEMPERATURES)] if rounds > 1 else 0.8
        prompt_length = options.window * (5 if temperature == 0 else 2) // 8
        prompts = prompt_stream.batch(number % prompt_stream.batches_per_epoch)[:, :prompt_length]
        temperatures = torch.full((per_round,), temperature, device=device)
        with autocast(device):
            text = generate(target, prompts, options.window - prompt_length, temperatures, generator)
        pieces.append(text.int())
    return torch.cat(pieces)


def train_draft(options: DraftOptions, report: Callable[[Progress], None] = lambda progress: None) -> Eagle3Head:
    """Train, fine-tune, or go on training, the head in `options.folder`; the trained head in float32."""
    if options.batch_size < 2:
        raise ConfigError(f"a batch mixes own and corpus text, so it needs 2 sequences, got {options.batch_size}.")
    torch.set_float32_matmul_precision("high")
    task = DraftTask(options)
    loop_options = LoopOptions(
        options.folder,
        options.minutes * 60,
        options.peak_lr,
        options.settings(),
        clip_norm=0.5,
        max_steps=options.max_steps,
    )
    TrainingLoop(task, loop_options, report=report).run()
    return task.model
