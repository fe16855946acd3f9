"""Is the bundled model a real language model, and does its head guess its tokens?

Text: bits per byte on held-out packages, against xz and a Kneser-Ney 5-gram model of all training text. The slices
are whole files up to 40 kB in random order; xz compresses a slice at once and file by file, and the model sees at most
1024 tokens.
Acceptance: the engine on the bundled held-out prompts, chain of 4, greedy and sampled, per domain and position.
Controls: the same target with the rows of one weight permuted, and a head with random weights.
Needs the corpus of scripts/build_corpus.py; about 15 minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import random
import tempfile
from collections import defaultdict
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from fastverify import bundled
from fastverify.comm.communicator import single_rank_communicator
from fastverify.engine.config import EngineConfig
from fastverify.engine.engine import Engine
from fastverify.engine.request import Request, RequestStats, SamplingParams
from fastverify.model_config import read_eagle3_config
from fastverify.models.llama import LlamaForCausalLM
from fastverify.models.random_weights import write_random_draft
from fastverify.models.weights import load_target
from fastverify.records import write_record
from fastverify.training.corpus.build import TRAINING_FILE
from fastverify.training.corpus.documents import Document
from fastverify.training.corpus.tokens import encode_documents, read_tokens
from fastverify.training.evaluate import count_bytes, score_tokens
from fastverify.training.ngram import NgramModel

NGRAM_ORDER = 5
NUM_DRAFTS = 4
# Arbitrary: no single file fills a slice. Leaves out SQLite's generated cross-reference pages, where xz wins.
MAX_FILE_BYTES = 40_000
TEMPERATURES = (0.0, 0.7, 1.0)
# Arbitrary: a layer in the middle; any other shows the same.
SHUFFLED_LAYER = 4


def held_out_slices(corpus: Path, slice_bytes: int, seed: int) -> dict[str, list[Document]]:
    """Random whole files of every held-out source, up to `slice_bytes` in all and MAX_FILE_BYTES each."""
    by_source: dict[str, list[Document]] = defaultdict(list)
    for line in (corpus / "held_out.jsonl").read_text(encoding="utf-8").splitlines():
        by_source[json.loads(line)["source"]].append(Document(**json.loads(line), held_out=True))
    slices = {}
    for source, every_document in sorted(by_source.items()):
        documents = [document for document in every_document if len(document.text.encode()) <= MAX_FILE_BYTES]
        random.Random(seed).shuffle(documents)
        sizes = np.cumsum([len(document.text.encode()) for document in documents])
        slices[source] = documents[: int(np.searchsorted(sizes, slice_bytes)) + 1]
    return slices


def xz_bits_per_byte(texts: list[bytes]) -> float:
    """Each text compressed on its own, without container overhead."""
    size = sum(len(lzma.compress(text, format=lzma.FORMAT_ALONE, preset=9)) for text in texts)
    return 8 * size / sum(map(len, texts))


def score_text(
    documents: list[Document],
    tokenizer: Tokenizer,
    target: LlamaForCausalLM,
    shuffled: LlamaForCausalLM,
    ngram: NgramModel,
) -> dict[str, Any]:
    """Bits per byte of one slice by everything that is compared."""
    token_ids = encode_documents(tokenizer, documents)
    stream = torch.from_numpy(token_ids.astype("int32"))
    texts = [document.text.encode() for document in documents]
    scored = score_tokens(target, stream, tokenizer)
    ngram_nats = ngram.nats(token_ids)
    ngram_bytes = count_bytes(tokenizer, token_ids[NGRAM_ORDER - 1 :].tolist())
    return {
        "model": asdict(scored),
        "xz_slice": xz_bits_per_byte([b"".join(texts)]),
        "xz_file_by_file": xz_bits_per_byte(texts),
        "ngram": float(ngram_nats.sum()) / math.log(2) / ngram_bytes,
        "model_one_weight_shuffled": score_tokens(shuffled, stream[:20_000], tokenizer).bits_per_byte,
        "num_files": len(documents),
        "num_bytes": sum(map(len, texts)),
    }


def shuffled_target(seed: int) -> LlamaForCausalLM:
    """The target with the output rows of one layer's MLP in another order."""
    target = load_target(bundled.target_dir(), single_rank_communicator())
    weight = target.get_parameter(f"layers.{SHUFFLED_LAYER}.mlp.down.weight")
    order = torch.randperm(weight.shape[0], generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        weight.copy_(weight[order])
    return target


def measure_text(arguments: argparse.Namespace, tokenizer: Tokenizer) -> dict[str, Any]:
    """Scores of every held-out slice."""
    ngram = NgramModel(read_tokens(arguments.corpus / TRAINING_FILE), NGRAM_ORDER, tokenizer.get_vocab_size())
    target = load_target(bundled.target_dir(), single_rank_communicator())
    shuffled = shuffled_target(arguments.seed)
    results = {}
    for source, documents in held_out_slices(arguments.corpus, arguments.slice_bytes, arguments.seed).items():
        results[source] = score = score_text(documents, tokenizer, target, shuffled, ngram)
        print(
            f"{source:14} bits per byte: model {score['model']['bits_per_byte']:.3f}  xz {score['xz_slice']:.3f} "
            f"(file by file {score['xz_file_by_file']:.3f})  5-gram {score['ngram']:.3f}  "
            f"one weight shuffled {score['model_one_weight_shuffled']:.3f}",
            flush=True,
        )
    return results


def run_prompts(
    engine: Engine, domain: str, temperature: float, tokenizer: Tokenizer, max_tokens: int
) -> list[RequestStats]:
    """Statistics of every bundled prompt of the domain."""
    for prompt in bundled.prompts(domain):
        sampling = SamplingParams(max_tokens, temperature, seed=1, ignore_eos=True)
        engine.submit(Request(prompt.prompt_id, tuple(tokenizer.encode(prompt.text).ids), sampling, stream=False))
    finished: list[RequestStats] = []
    while len(finished) < len(bundled.prompts(domain)):
        event = engine.next_event()
        if event is not None and event.stats is not None:
            finished.append(event.stats)
    return finished


def acceptance_of(stats: list[RequestStats]) -> dict[str, Any]:
    """Acceptance length over all requests, and the share of passes in which each position was correct."""
    passes = sum(one.num_verify_passes for one in stats)
    columns = zip_longest(*(one.correct_drafts_per_position for one in stats), fillvalue=0)
    per_position = [sum(column) / passes for column in columns]
    return {
        "accept_length": 1 + sum(one.num_correct_drafts for one in stats) / passes,
        "accept_rate_per_position": per_position,
        "num_verify_passes": passes,
        "accept_length_by_prompt": [one.accept_length for one in stats],
    }


def measure_acceptance(
    draft: Path, temperatures: tuple[float, ...], max_tokens: int, tokenizer: Tokenizer
) -> dict[str, Any]:
    """Acceptance of one head by domain and temperature."""
    config = EngineConfig(str(bundled.target_dir()), str(draft), tp_size=1, num_draft_steps=NUM_DRAFTS)
    results: dict[str, Any] = {}
    with Engine.start(config) as engine:
        for domain in bundled.prompt_domains():
            for temperature in temperatures:
                found = acceptance_of(run_prompts(engine, domain, temperature, tokenizer, max_tokens))
                results[f"{domain}, temperature {temperature}"] = found
                rates = "  ".join(f"{rate:.3f}" for rate in found["accept_rate_per_position"])
                print(f"{domain:10} T={temperature}: {found['accept_length']:.3f}   per position {rates}", flush=True)
    return results


def random_head_acceptance(seed: int, max_tokens: int, tokenizer: Tokenizer) -> dict[str, Any]:
    """The control: a head of the same shape that never learned anything."""
    with tempfile.TemporaryDirectory() as folder:
        write_random_draft(read_eagle3_config(bundled.draft_dir()), Path(folder), seed)
        return measure_acceptance(Path(folder), (0.0,), max_tokens, tokenizer)


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=Path(".corpus"))
    parser.add_argument("--slice-bytes", type=int, default=250_000)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/model_quality_cpu_2026-11.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(bundled.target_dir() / "tokenizer.json"))
    acceptance = measure_acceptance(bundled.draft_dir(), TEMPERATURES, arguments.max_tokens, tokenizer)
    print("random head:")
    random_head = random_head_acceptance(arguments.seed, 32, tokenizer)
    text = measure_text(arguments, tokenizer)
    write_record(
        arguments.out,
        question="Is the bundled model a real language model, and does its head guess its tokens?",
        settings={
            "slice_bytes": arguments.slice_bytes,
            "max_file_bytes": MAX_FILE_BYTES,
            "num_drafts": NUM_DRAFTS,
            "max_tokens": arguments.max_tokens,
        },
        results={"text_bits_per_byte": text, "acceptance": acceptance, "random_head_acceptance": random_head},
    )


if __name__ == "__main__":
    main()
