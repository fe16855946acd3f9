#!/usr/bin/env python3
"""Cut the bundled held-out prompts and the held-out slice of the tests from a corpus.

python scripts/cut_prompts.py --corpus .corpus --out src/fastverify/assets/prompts
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from tokenizers import Tokenizer

from fastverify.training.corpus.prompts import cut_prompts

COUNTS = {"code": 64, "docs": 32, "dictionary": 32}


def main() -> None:
    """Write one JSON-lines file per domain."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=Path(".corpus"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=2026)
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.corpus / "tokenizer.json"))
    lines = (arguments.corpus / "held_out.jsonl").read_text(encoding="utf-8").splitlines()
    documents = [json.loads(line) for line in lines]
    arguments.out.mkdir(parents=True, exist_ok=True)
    for domain, count in COUNTS.items():
        chosen = [document for document in documents if document["domain"] == domain]
        prompts = cut_prompts(chosen, tokenizer, count, arguments.seed)
        text = "".join(json.dumps(asdict(prompt)) + "\n" for prompt in prompts)
        (arguments.out / f"{domain}.jsonl").write_text(text, encoding="utf-8")
        print(f"{domain}: {len(prompts)} prompts")


if __name__ == "__main__":
    main()
