"""How long is one target forward of n rows on one core, without any collective, and where does the time go?

The model is one rank's half of the bundled target (8 layers, 320 wide, tensor parallel over two) with random weights
that are exact in bf16; sums over ranks are left out, so this is the floor that a verify pass can reach with a free
all-reduce. Row counts and both kinds of linear layers are interleaved: "torch" has torch's, with everything else as it
is; "native" our kernels throughout. Pieces are timed apart, each over all layers; their weights stay in the caches
better than in a whole pass, so they add up to less. Times are CPU time of the one thread: other processes on the
machine do not count, though their use of the caches does.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from time import thread_time_ns

import torch
from torch.nn import functional as F

from fastverify.comm.communicator import SingleRankCommunicator
from fastverify.engine.attention import Segment, attend_over
from fastverify.engine.kv_cache import KVCache
from fastverify.model_config import ModelConfig
from fastverify.models.linear import pack_linears
from fastverify.models.llama import LlamaForCausalLM
from fastverify.models.random_weights import initialize
from fastverify.models.rope import rotate
from fastverify.records import write_record
from fastverify.units import ns_to_us

CONFIG = ModelConfig("LlamaForCausalLM", 320, 8, 10, 2, 32, 864, 4096, tie_word_embeddings=True)
NUM_CACHED = 256


class HalfOfTwo(SingleRankCommunicator):
    """Rank 0 of two whose peer's part is taken for zero: the sums cost nothing, the norm is a fused kernel's."""

    @property
    def world_size(self) -> int:
        """Two, so that the model holds half of each matrix."""
        return 2

    def all_reduce_residual_rmsnorm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """In place, as the backends of several ranks do it."""
        residual.add_(x)
        return F.rms_norm(residual, weight.shape, weight, eps), residual

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Both ranks answer the same."""
        return torch.stack((x, x))


def measure_us(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Samples of every call, one of each in turn, so that a disturbance hits all of them alike.

    An untimed call comes before each timed one: an engine runs one model over and over, not two in turn.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            call()
            start_ns = thread_time_ns()
            call()
            samples[name].append(ns_to_us(thread_time_ns() - start_ns))
    return samples


def random_model(packed: bool) -> LlamaForCausalLM:
    """The half model with weights exact in bf16, as in the checkpoint; packed for inference or as torch has them."""
    model = LlamaForCausalLM(CONFIG, HalfOfTwo()).requires_grad_(False)
    initialize(model, seed=0)
    model.to(torch.bfloat16).to(torch.float32)
    if packed:
        pack_linears(model)
    return model


def forward_calls(row_counts: list[int]) -> dict[str, Callable[[], object]]:
    """One pass with its arg-max, for each layout and number of rows behind NUM_CACHED cached ones."""
    calls: dict[str, Callable[[], object]] = {}
    for layout in ("torch", "native"):
        model = random_model(packed=layout == "native")
        cache = KVCache(CONFIG.num_layers, 1, 512, model.num_local_kv_heads, CONFIG.head_dim, torch.float32)
        for rows in row_counts:
            calls[f"{rows} {layout}"] = partial(run_pass, model, cache, rows)
    return calls


def run_pass(model: LlamaForCausalLM, cache: KVCache, rows: int) -> torch.Tensor:
    """What the engine does for one request, without its bookkeeping."""
    attention = attend_over(cache, [Segment(0, NUM_CACHED, rows)])
    positions = torch.arange(NUM_CACHED, NUM_CACHED + rows)
    return model.greedy(model(torch.arange(rows), positions, attention).hidden_TD)


def piece_calls(model: LlamaForCausalLM, rows: int) -> dict[str, Callable[[], object]]:
    """The parts of a pass, each over all its layers; together they are nearly the pass."""
    config, shard = CONFIG, model.layers[0].attention.shard
    layers = list(model.layers)
    x_TD = torch.randn(rows, config.hidden_size)
    head_counts = (shard.num_heads, shard.num_kv_heads, shard.num_kv_heads)
    packed = torch.randn(rows, sum(head_counts), config.head_dim)
    attended = torch.randn(rows, shard.num_heads * config.head_dim)
    inner_TI = torch.randn(rows, layers[0].mlp.size)
    q, k, v = packed.split(head_counts, 1)
    cache = KVCache(config.num_layers, 1, 512, shard.num_kv_heads, config.head_dim, torch.float32)
    positions = torch.arange(NUM_CACHED, NUM_CACHED + rows)
    angles = model.rope(positions, torch.float32)
    add_and_norm = model.communicator.all_reduce_residual_rmsnorm

    def attend() -> None:
        attention = attend_over(cache, [Segment(0, NUM_CACHED, rows)])
        for index in range(config.num_layers):
            attention.attend(index, q, k, v)

    def each(call: Callable[[int], object]) -> Callable[[], object]:
        return lambda: [call(index) for index in range(config.num_layers)]

    return {
        "qkv": each(lambda i: layers[i].attention.qkv.forward(x_TD)),
        "rotate": each(lambda i: rotate(packed, shard.num_heads + shard.num_kv_heads, angles)),
        "attend": attend,
        "output": each(lambda i: layers[i].attention.output.forward(attended)),
        "silu(gate) * up": each(lambda i: layers[i].mlp.gate_up.forward(x_TD)),
        "down": each(lambda i: layers[i].mlp.down.forward(inner_TI)),
        "add + norm": each(lambda i: [add_and_norm(x_TD, x_TD.clone(), model.norm, 1e-6) for _ in range(2)]),
        "embedding, angles": lambda: (model.embed_tokens(positions), model.rope(positions, torch.float32)),
        "arg-max": lambda: model.greedy(x_TD),
    }


def print_table(title: str, samples: dict[str, list[float]]) -> None:
    """Median and quartiles of each row."""
    print(f"\n{title:<22}{'median us':>10}{'25 %':>10}{'75 %':>10}")
    for name, values in samples.items():
        ordered = sorted(values)
        low, high = ordered[len(ordered) // 4], ordered[3 * len(ordered) // 4]
        print(f"{name:<22}{median(values):>10.1f}{low:>10.1f}{high:>10.1f}")


def main() -> None:
    """Measure, print, and write a record when asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6, 8, 12, 16])
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--out", type=Path, help="write the raw samples to this JSON file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with torch.inference_mode():
        forwards = measure_us(forward_calls(arguments.rows), arguments.repeats)
        model = random_model(packed=True)
        pieces = {n: measure_us(piece_calls(model, n), arguments.repeats) for n in arguments.rows if n in (1, 4, 8)}
    print_table("rows, linear layers", forwards)
    for rows, samples in pieces.items():
        print_table(f"pieces, {rows} row(s)", samples)
    if arguments.out:
        settings = {"repeats": arguments.repeats, "num_cached": NUM_CACHED, "torch": torch.__version__, "threads": 1}
        settings |= {"config": asdict(CONFIG)}
        write_record(
            arguments.out,
            question=__doc__.splitlines()[0],
            settings=settings,
            results={"forward_us": forwards, "pieces_us": {str(rows): samples for rows, samples in pieces.items()}},
        )


if __name__ == "__main__":
    main()
