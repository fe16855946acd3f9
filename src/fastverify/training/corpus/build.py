"""The whole corpus, step by step: fetch, read, separate, tokenize, write shards, held-out text and the manifest.

Everything lands in one folder; a source that was downloaded before is not downloaded again.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from fastverify.training.corpus.documents import Document, read_documents
from fastverify.training.corpus.fetch import digest, fetch
from fastverify.training.corpus.overlap import OverlapReport, separate
from fastverify.training.corpus.sources import SOURCES, Source
from fastverify.training.corpus.tokens import encode_documents, train_tokenizer, write_tokens

TRAINING_FILE = "train.u16.xz"
MANIFEST_FILE = "manifest.json"
# Arbitrary: merges stop changing well before this much text.
TOKENIZER_SAMPLE_BYTES = 60_000_000


@dataclass(frozen=True)
class CorpusOptions:
    """Where the corpus goes and how it is cut."""

    folder: Path
    vocab_size: int = 4096
    seed: int = 2026


def build_corpus(options: CorpusOptions, say: Callable[[str], None]) -> dict[str, Any]:
    """Build the corpus and return its manifest."""
    documents, sources = _collect(options.folder / "downloads", say)
    training, held_out, report = separate(documents)
    say(f"separated: {report}")
    random.Random(options.seed).shuffle(training)
    tokenizer = train_tokenizer(_sample(training), options.vocab_size)
    tokenizer.save(str(options.folder / "tokenizer.json"))
    say("tokenizer trained")
    counts = _write_token_files(options.folder, tokenizer, training, held_out)
    _write_held_out_text(options.folder / "held_out.jsonl", held_out)
    manifest = _manifest(options, sources, training, held_out, report, counts)
    (options.folder / MANIFEST_FILE).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest


def _collect(downloads: Path, say: Callable[[str], None]) -> tuple[list[Document], list[dict[str, Any]]]:
    documents, described = [], []
    for source in SOURCES:
        archive = fetch(source, downloads)
        own = list(read_documents(source, archive))
        documents += own
        described.append(_describe(source, archive, own))
        say(f"{source.name} {source.version}: {described[-1]['text_bytes'] / 1e6:.1f} MB")
    return documents, described


def _describe(source: Source, archive: Path, documents: list[Document]) -> dict[str, Any]:
    return {
        "name": source.name,
        "version": source.version,
        "kind": source.kind,
        "licence": source.licence,
        "domain": source.domain,
        "held_out": source.held_out,
        "archive_sha256": digest(archive),
        "num_documents": len(documents),
        "text_bytes": sum(len(document.text.encode()) for document in documents),
    }


def _sample(documents: list[Document]) -> list[str]:
    sample, remaining = [], TOKENIZER_SAMPLE_BYTES
    for document in documents:
        remaining -= len(document.text)
        if remaining < 0:
            break
        sample.append(document.text)
    return sample


def _write_token_files(
    folder: Path, tokenizer: Tokenizer, training: list[Document], held_out: list[Document]
) -> dict[str, int]:
    groups = {TRAINING_FILE: training}
    for document in held_out:
        groups.setdefault(held_out_file(document.source), []).append(document)
    counts = {}
    for name, documents in groups.items():
        token_ids = encode_documents(tokenizer, documents)
        write_tokens(folder / name, token_ids)
        counts[name] = len(token_ids)
    return counts


def held_out_file(source: str) -> str:
    """Name of the token file of a held-out source."""
    return f"held-out-{source}.u16.xz"


def _write_held_out_text(path: Path, held_out: list[Document]) -> None:
    lines = (json.dumps({"source": d.source, "domain": d.domain, "path": d.path, "text": d.text}) for d in held_out)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _manifest(
    options: CorpusOptions,
    sources: list[dict[str, Any]],
    training: list[Document],
    held_out: list[Document],
    report: OverlapReport,
    token_counts: dict[str, int],
) -> dict[str, Any]:
    files = [*token_counts, "tokenizer.json"]
    return {
        "schema_version": 1,
        "seed": options.seed,
        "vocab_size": options.vocab_size,
        "sources": sources,
        "separation": asdict(report),
        "training_bytes_by_domain": _bytes_by(training, lambda document: document.domain),
        "training_bytes_by_source": _bytes_by(training, lambda document: document.source),
        "held_out_bytes_by_source": _bytes_by(held_out, lambda document: document.source),
        "token_counts": token_counts,
        "sha256": {name: hashlib.sha256((options.folder / name).read_bytes()).hexdigest() for name in files},
    }


def _bytes_by(documents: list[Document], key: Callable[[Document], str]) -> dict[str, int]:
    totals: Counter[str] = Counter()
    for document in documents:
        totals[key(document)] += len(document.text.encode())
    return dict(totals)
