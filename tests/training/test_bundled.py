"""The shipped weights: unharmed, in the format that servers read, better than a compressor, and a head that guesses."""

import json
import lzma
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tokenizers import Tokenizer

from fastverify import bundled
from fastverify.comm.communicator import single_rank_communicator
from fastverify.model_config import read_eagle3_config, read_model_config
from fastverify.models.llama import LlamaForCausalLM
from fastverify.models.random_weights import write_random_draft
from fastverify.models.weights import load_draft, load_target
from fastverify.training.corpus.documents import Document
from fastverify.training.corpus.tokens import encode_documents
from fastverify.training.evaluate import measure_acceptance, score_tokens
from fastverify.training.generate import generate

ROOT = Path(__file__).parent.parent.parent
SLICES = Path(__file__).parent.parent / "data" / "held_out" / "slices.jsonl"
MAX_FILE_BYTES = 15_000_000
MAX_TOTAL_BYTES = 30_000_000


def test_no_file_is_missing_changed_or_unlisted() -> None:
    assert bundled.wrong_files() == ()
    listed = {line.split(maxsplit=1)[1] for line in bundled.CHECKSUMS.read_text().splitlines()}
    present = {p.relative_to(bundled.ASSETS).as_posix() for p in bundled.ASSETS.rglob("*") if p.is_file()}
    assert present - listed == {bundled.CHECKSUMS.name}


def test_sizes_suit_a_repository() -> None:
    sizes = [path.stat().st_size for path in bundled.ASSETS.rglob("*") if path.is_file()]
    assert max(sizes) < MAX_FILE_BYTES
    assert sum(sizes) < MAX_TOTAL_BYTES


def test_head_has_the_tensors_that_servers_read() -> None:
    tensors = load_file(bundled.draft_dir() / "model.safetensors")
    keys = json.loads((bundled.draft_dir() / "config.json").read_text())
    size, heads, kv, d = (keys[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"))
    inner, vocab, draft_vocab = keys["intermediate_size"], keys["vocab_size"], keys["draft_vocab_size"]
    attention, mlp = "midlayer.self_attn", "midlayer.mlp"
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {
        "fc.weight": (size, 3 * size),
        f"{attention}.q_proj.weight": (heads * d, 2 * size),
        f"{attention}.k_proj.weight": (kv * d, 2 * size),
        f"{attention}.v_proj.weight": (kv * d, 2 * size),
        f"{attention}.o_proj.weight": (size, heads * d),
        f"{mlp}.gate_proj.weight": (inner, size),
        f"{mlp}.up_proj.weight": (inner, size),
        f"{mlp}.down_proj.weight": (size, inner),
        "midlayer.input_layernorm.weight": (size,),
        "midlayer.hidden_norm.weight": (size,),
        "midlayer.post_attention_layernorm.weight": (size,),
        "norm.weight": (size,),
        "lm_head.weight": (draft_vocab, size),
        "d2t": (draft_vocab,),
        "t2d": (vocab,),
    }
    assert tensors["d2t"].dtype == torch.int64
    assert tensors["t2d"].dtype == torch.bool
    assert torch.equal(tensors["t2d"].nonzero()[:, 0], torch.arange(draft_vocab) + tensors["d2t"])
    assert keys["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 4, 6]
    assert keys["fastverify_capture_layers"] == [2, 5, 7]


def test_target_index_names_every_tensor_once() -> None:
    index = json.loads((bundled.target_dir() / "model.safetensors.index.json").read_text())["weight_map"]
    held: dict[str, str] = {}
    for file in bundled.target_dir().glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            held |= dict.fromkeys(tensors.keys(), file.name)
    assert held == index


def test_prompts_are_long_enough_to_draft_from() -> None:
    tokenizer = Tokenizer.from_file(str(bundled.target_dir() / "tokenizer.json"))
    assert bundled.prompt_domains() == ("code", "dictionary", "docs")
    for domain in bundled.prompt_domains():
        lengths = [len(tokenizer.encode(prompt.text).ids) for prompt in bundled.prompts(domain)]
        assert len(lengths) >= 32
        assert min(lengths) >= 100
        assert max(lengths) <= 200


def test_document_shows_what_was_measured() -> None:
    results = json.loads((ROOT / "benchmarks" / "results" / "model_quality_cpu_2026-11.json").read_text())["results"]
    document = (ROOT / "docs" / "bundled-model.md").read_text()
    for name, found in results["acceptance"].items():
        domain, temperature = name.split(", temperature ")
        rates = ", ".join(f"{rate:.2f}" for rate in found["accept_rate_per_position"])
        assert f"| {domain} | {temperature} | **{found['accept_length']:.2f}** | {rates} |" in document
    for found in results["text_bits_per_byte"].values():
        assert (
            f"| **{found['model']['bits_per_byte']:.2f}** | {found['ngram']:.2f} | {found['xz_slice']:.2f} |"
            in document
        )


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    layers = read_eagle3_config(bundled.draft_dir()).capture_layers
    return load_target(bundled.target_dir(), single_rank_communicator(), capture_layers=layers)


@pytest.mark.slow
def test_held_out_text_costs_clearly_less_than_xz(target: LlamaForCausalLM) -> None:
    tokenizer = Tokenizer.from_file(str(bundled.target_dir() / "tokenizer.json"))
    by_source = defaultdict(list)
    for line in SLICES.read_text().splitlines():
        document = Document(**json.loads(line), held_out=True)
        by_source[document.source].append(document)
    for source, documents in by_source.items():
        text = "".join(document.text for document in documents).encode()
        xz = 8 * len(lzma.compress(text, format=lzma.FORMAT_ALONE, preset=9)) / len(text)
        stream = torch.from_numpy(encode_documents(tokenizer, documents).astype("int32"))
        model = score_tokens(target, stream, tokenizer).bits_per_byte
        # Measured: benchmarks/results/model_quality_cpu_2026-11.json has 0.5 to 0.75 of xz on larger slices.
        assert model < 0.8 * xz, (source, model, xz)


@pytest.mark.slow
def test_shipped_head_guesses_and_a_random_one_does_not(target: LlamaForCausalLM, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(bundled.target_dir() / "tokenizer.json"))
    prompts = torch.tensor([tokenizer.encode(prompt.text).ids[-96:] for prompt in bundled.prompts("code")[:8]])
    sequences = generate(target, prompts, 40, torch.zeros(len(prompts)))
    write_random_draft(read_eagle3_config(bundled.draft_dir(), read_model_config(bundled.target_dir())), tmp_path, 1)
    accept_lengths = []
    for folder in (bundled.draft_dir(), tmp_path):
        head = load_draft(folder, target, single_rank_communicator())
        accept_lengths.append(measure_acceptance(target, head, sequences, 96, 4, temperature=0.0).accept_length)
    shipped, random_head = accept_lengths
    assert shipped > 2.5
    assert random_head < 1.2
