"""An EAGLE-3 head written straight from its formulas over the tensors of a file, and a writer of random files.

Deliberately naive: one head and one row at a time, unmerged weights, no cache. It shares no code with the package.
"""

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, DRAFT_VOCAB = 64, 96, 4, 2, 16, 40
EPS, THETA = 1e-5, 5000.0
Tensors = dict[str, torch.Tensor]


def write_head(folder: Path, target_size: int, vocab_size: int, **switches: Any) -> Tensors:
    """Random head over `vocab_size` target tokens; returns its tensors under the `midlayer` names."""
    generator = torch.Generator().manual_seed(11)

    def random(*shape: int) -> torch.Tensor:
        noise = torch.randn(shape, generator=generator)
        return 1.0 + 0.2 * noise if len(shape) == 1 else 0.15 * noise

    chosen = torch.randperm(vocab_size, generator=generator)[:DRAFT_VOCAB].sort().values
    tensors = {
        "fc.weight": random(HIDDEN, 3 * target_size),
        "midlayer.input_layernorm.weight": random(HIDDEN),
        "midlayer.hidden_norm.weight": random(HIDDEN),
        "midlayer.self_attn.q_proj.weight": random(HEADS * HEAD_DIM, 2 * HIDDEN),
        "midlayer.self_attn.k_proj.weight": random(KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        "midlayer.self_attn.v_proj.weight": random(KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        "midlayer.self_attn.o_proj.weight": random(HIDDEN, HEADS * HEAD_DIM),
        "midlayer.post_attention_layernorm.weight": random(HIDDEN),
        "midlayer.mlp.gate_proj.weight": random(INTERMEDIATE, HIDDEN),
        "midlayer.mlp.up_proj.weight": random(INTERMEDIATE, HIDDEN),
        "midlayer.mlp.down_proj.weight": random(HIDDEN, INTERMEDIATE),
        "norm.weight": random(HIDDEN),
        "lm_head.weight": random(DRAFT_VOCAB, HIDDEN),
        "d2t": chosen - torch.arange(DRAFT_VOCAB),
        "t2d": torch.isin(torch.arange(vocab_size), chosen),
    }
    if switches.get("fc_norm"):
        tensors |= {f"fc_norm.{i}.weight": random(target_size) for i in range(3)}
    if switches.get("norm_before_fc"):
        tensors["input_norm.weight"] = random(3 * target_size)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors")
    write_config(folder, target_size, vocab_size, **switches)
    return tensors


def write_config(folder: Path, target_size: int, vocab_size: int, **switches: Any) -> None:
    """config.json as SpecForge writes it."""
    sizes = {
        "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "num_hidden_layers": 1,
        "rms_norm_eps": EPS, "rope_theta": THETA, "vocab_size": vocab_size, "draft_vocab_size": DRAFT_VOCAB,
        "target_hidden_size": target_size, "fastverify_capture_layers": [0, 1, 3],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(sizes | switches))


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + EPS) * weight


def fused(tensors: Tensors, aux_TAD: torch.Tensor, **switches: Any) -> torch.Tensor:
    """g = fc([low; mid; high])."""
    parts = [aux_TAD[:, i] for i in range(3)]
    if switches.get("fc_norm"):
        parts = [norm(part, tensors[f"fc_norm.{i}.weight"]) for i, part in enumerate(parts)]
    joined = torch.cat(parts, -1)
    if switches.get("norm_before_fc"):
        joined = norm(joined, tensors["input_norm.weight"])
    return joined @ tensors["fc.weight"].T


def states(
    tensors: Tensors, embedded_TD: torch.Tensor, hidden_TD: torch.Tensor, positions: list[int], **switches: Any
) -> torch.Tensor:
    """a_t of every row of one causal sequence."""
    layer = {name.removeprefix("midlayer."): value for name, value in tensors.items()}
    normed = norm(hidden_TD, layer["hidden_norm.weight"])
    both = torch.cat((norm(embedded_TD, layer["input_layernorm.weight"]), normed), -1)
    stream = normed if switches.get("norm_before_residual") else hidden_TD
    stream = stream + attention(layer, both, positions) @ layer["self_attn.o_proj.weight"].T
    mlp_input = norm(stream, layer["post_attention_layernorm.weight"])
    gate, up = mlp_input @ layer["mlp.gate_proj.weight"].T, mlp_input @ layer["mlp.up_proj.weight"].T
    stream = stream + (gate * torch.sigmoid(gate) * up) @ layer["mlp.down_proj.weight"].T
    return norm(stream, layer["norm.weight"]) if switches.get("norm_output") else stream


def draft_logits(tensors: Tensors, states_TD: torch.Tensor, **switches: Any) -> torch.Tensor:
    final = states_TD if switches.get("norm_output") else norm(states_TD, tensors["norm.weight"])
    return final @ tensors["lm_head.weight"].T


def attention(layer: Tensors, x_TD: torch.Tensor, positions: list[int]) -> torch.Tensor:
    rows = len(positions)
    queries, keys, values = (
        (x_TD @ layer[f"self_attn.{name}_proj.weight"].T).view(rows, -1, HEAD_DIM) for name in ("q", "k", "v")
    )
    out = torch.zeros(rows, HEADS, HEAD_DIM)
    for head in range(HEADS):
        kv_head = head * KV_HEADS // HEADS
        for row in range(rows):
            query = turned(queries[row, head], positions[row])
            scores = torch.stack([query @ turned(keys[past, kv_head], positions[past]) for past in range(row + 1)])
            weights = (scores / math.sqrt(HEAD_DIM)).softmax(0)
            out[row, head] = weights @ values[: row + 1, kv_head]
    return out.flatten(1)


def turned(x_d: torch.Tensor, position: int) -> torch.Tensor:
    """Pairs (i, i + d/2) as complex numbers, turned by their angle."""
    half = HEAD_DIM // 2
    angles = position * THETA ** (-torch.arange(half) / half)
    pairs = torch.complex(x_d[:half], x_d[half:]) * torch.polar(torch.ones(half), angles)
    return torch.cat((pairs.real, pairs.imag))
