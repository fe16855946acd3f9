#!/usr/bin/env python3
"""Build the training corpus of the bundled model: about 3 minutes, 150 MB of downloads, Debian's apt-get needed.

    python scripts/build_corpus.py --folder .corpus

Every source, version and licence is in src/fastverify/training/corpus/sources.py.
"""

import argparse
import sys
from pathlib import Path

from fastverify.training.corpus.build import CorpusOptions, build_corpus


def main() -> None:
    """Parse the options, build, print the totals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(".corpus"))
    parser.add_argument("--seed", type=int, default=CorpusOptions.seed)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    manifest = build_corpus(
        CorpusOptions(arguments.folder.resolve(), seed=arguments.seed), lambda line: print(line, file=sys.stderr)
    )
    for name, count in manifest["token_counts"].items():
        print(f"{name}: {count:,} tokens")


if __name__ == "__main__":
    main()
