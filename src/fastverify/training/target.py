"""Training of the target model: next-token loss over windows of the corpus, float32 weights, bf16 arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.nn import functional as F

from fastverify.comm.communicator import single_rank_communicator
from fastverify.errors import ConfigError
from fastverify.model_config import ModelConfig
from fastverify.models.llama import LlamaForCausalLM
from fastverify.models.random_weights import initialize
from fastverify.training.attention import CausalAttention
from fastverify.training.corpus.build import TRAINING_FILE
from fastverify.training.data import TokenStream, load_token_file
from fastverify.training.evaluate import token_losses
from fastverify.training.loop import LoopOptions, Progress, TrainingLoop
from fastverify.training.optimizers import build_optimizers
from fastverify.training.tokenizer_files import END_OF_TEXT, END_OF_TURN, load_tokenizer, special_token_id

VALIDATION_WINDOWS = 64


@dataclass(frozen=True)
class TargetOptions:
    """Everything that decides what a target becomes. The defaults made the bundled model."""

    corpus: Path
    folder: Path
    minutes: float
    hidden_size: int = 320
    num_layers: int = 8
    intermediate_size: int = 864
    num_heads: int = 10
    num_kv_heads: int = 2
    head_dim: int = 32
    window: int = 1024
    batch_size: int = 128
    peak_lr: float = 4e-3
    weight_decay: float = 0.1
    seed: int = 2026
    device: str = "auto"
    compile: bool = False
    max_steps: int = 0

    def settings(self) -> dict[str, float | int | str]:
        """What must not change when a run resumes: all but places, and how the arithmetic is compiled."""
        free = ("corpus", "folder", "device", "compile", "max_steps")
        return {name: value for name, value in asdict(self).items() if name not in free}


def resolve_device(name: str) -> torch.device:
    """The device that "auto" means here, or the one named."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def autocast(device: torch.device) -> AbstractContextManager[None]:
    """bf16 matrix products on a GPU; float32 on a CPU, where small bf16 products are slower."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def target_config(options: TargetOptions, vocab_size: int, end_of_text: int, end_of_turn: int) -> ModelConfig:
    """The Llama config of the options."""
    return ModelConfig(
        architecture="LlamaForCausalLM",
        hidden_size=options.hidden_size,
        num_layers=options.num_layers,
        num_heads=options.num_heads,
        num_kv_heads=options.num_kv_heads,
        head_dim=options.head_dim,
        intermediate_size=options.intermediate_size,
        vocab_size=vocab_size,
        rms_norm_eps=1e-5,
        max_position_embeddings=options.window,
        tie_word_embeddings=True,
        eos_token_ids=(end_of_text, end_of_turn),
        bos_token_id=end_of_text,
        torch_dtype="bfloat16",
    )


class TargetTask:
    """The target, its optimizers, its batches and its held-out windows."""

    def __init__(self, options: TargetOptions) -> None:
        self._device = resolve_device(options.device)
        stream = load_token_file(options.corpus / TRAINING_FILE, self._device)
        tokenizer = load_tokenizer(options.corpus)
        ends = (special_token_id(tokenizer, token) for token in (END_OF_TEXT, END_OF_TURN))
        config = target_config(options, tokenizer.get_vocab_size(), *ends)
        self.model = LlamaForCausalLM(config, single_rank_communicator())
        initialize(self.model, options.seed)
        _shrink_residual_outputs(self.model)
        self.model.to(self._device)
        self.optimizers = build_optimizers(
            self.model, options.peak_lr, options.weight_decay, [self.model.embed_tokens.weight]
        )
        self.tokens_per_step = options.batch_size * options.window
        self._stream = TokenStream(stream, options.window + 1, options.batch_size, options.seed)
        self._held_out = held_out_windows(options.corpus, options.window + 1, self._device)
        self._loss: Callable[[torch.Tensor], torch.Tensor] = (
            torch.compile(self._next_token_loss) if options.compile else self._next_token_loss
        )

    def loss(self, step: int) -> torch.Tensor:
        """Mean next-token loss of batch `step`."""
        return self._loss(self._stream.batch(step))

    def validate(self) -> dict[str, float]:
        """Nats per token on windows of every held-out source."""
        with autocast(self._device):
            return {
                f"held_out/{name}": float(token_losses(self.model, windows).mean())
                for name, windows in self._held_out.items()
            }

    def _next_token_loss(self, batch: torch.Tensor) -> torch.Tensor:
        num_sequences, length = batch.shape[0], batch.shape[1] - 1
        positions_T = torch.arange(length, device=batch.device).repeat(num_sequences)
        with autocast(self._device):
            hidden_TD = self.model(batch[:, :-1].flatten(), positions_T, CausalAttention(num_sequences)).hidden_TD
            logits_TV = self.model.logits(hidden_TD)
        return F.cross_entropy(logits_TV.float(), batch[:, 1:].flatten())


def held_out_windows(corpus: Path, window: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Up to VALIDATION_WINDOWS evenly spaced windows of each held-out source, by its name."""
    windows = {}
    for path in sorted(corpus.glob("held-out-*.u16.xz")):
        token_ids = load_token_file(path, device)
        count = len(token_ids) // window
        if count == 0:
            raise ConfigError(
                f"{path.name} must hold at least {window} tokens, got {len(token_ids)}. Use shorter windows."
            )
        rows = token_ids[: count * window].view(count, window)
        windows[path.name.removeprefix("held-out-").removesuffix(".u16.xz")] = rows[
            :: -(-count // VALIDATION_WINDOWS)
        ].long()
    return windows


@torch.no_grad()
def _shrink_residual_outputs(model: LlamaForCausalLM) -> None:
    """Start what each block adds to the stream at 1/sqrt(2L) of its size, so that depth does not grow the stream."""
    factor = (2 * model.config.num_layers) ** -0.5
    for name, parameter in model.named_parameters():
        if name.endswith(("attention.output.weight", "mlp.down.weight")):
            parameter.mul_(factor)


def train_target(
    options: TargetOptions, report: Callable[[Progress], None] = lambda progress: None
) -> LlamaForCausalLM:
    """Train, or go on training, the target in `options.folder`; the trained model in float32."""
    torch.set_float32_matmul_precision("high")
    task = TargetTask(options)
    loop_options = LoopOptions(
        options.folder, options.minutes * 60, options.peak_lr, options.settings(), max_steps=options.max_steps
    )
    TrainingLoop(task, loop_options, report=report).run()
    return task.model
