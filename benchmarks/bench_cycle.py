"""What does one decoding cycle of the bundled model cost, phase by phase, and what does speculation gain over plain?

Two ranks, held-out code prompts, one request at a time, both arms in turn on the same engine. A sample is one request;
its phases are differences of the engine's own totals on rank 0. Times are wall times: on a machine that others use,
read the fastest quarter. Nothing profiles while timing.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from fastverify import bundled
from fastverify.engine.config import EngineConfig
from fastverify.engine.engine import Engine
from fastverify.engine.request import Request, RequestStats, SamplingParams
from fastverify.engine.tokenizer import Tokenizer
from fastverify.records import write_record
from fastverify.units import s_to_ms

CHAIN = {"num_draft_steps": 4}
LOCAL = {"draft_placement": "replicated", "draft_token_exchange": "local_argmax"}
TREE = {"draft_shape": "tree", "num_draft_steps": 4, "top_k": 3, "num_proposed_drafts": 8}
SETTINGS: dict[str, dict[str, Any]] = {
    "gloo": {"comm_backend": "gloo", **CHAIN},
    "shm": {"comm_backend": "shm", **CHAIN},
    "shm, local draft": {"comm_backend": "shm", **CHAIN, **LOCAL},
    "shm, local draft, tree": {"comm_backend": "shm", **TREE, **LOCAL},
}
Sample = dict[str, float]


def measure(config: EngineConfig, prompts: Sequence[tuple[int, ...]], num_tokens: int) -> dict[str, list[Sample]]:
    """One sample per prompt and arm; the first prompt warms up."""
    samples: dict[str, list[Sample]] = {"plain": [], "speculative": []}
    with Engine.start(config) as engine:
        for index, prompt in enumerate([prompts[0], *prompts]):
            for arm, kept in samples.items():
                before = totals(engine, arm)
                stats = run(engine, prompt, num_tokens, speculative=arm == "speculative")
                if index > 0:
                    kept.append(sample(before, totals(engine, arm), stats))
    return samples


def run(engine: Engine, prompt: tuple[int, ...], num_tokens: int, *, speculative: bool) -> RequestStats:
    """Statistics of one request."""
    engine.submit(Request("bench", prompt, SamplingParams(num_tokens, ignore_eos=True), speculative))
    for event in engine.events():
        if event.stats is not None:
            return event.stats
    raise AssertionError("the last event of a request carries its statistics")


def totals(engine: Engine, arm: str) -> Sample:
    """Count and seconds by phase over all cycles of an arm."""
    summed: Sample = {"count": 0.0}
    for cycle in engine.stats().cycles:
        if cycle["kind"] == arm:
            for name, value in cycle.items():
                if name == "count" or name.endswith("_s"):
                    summed[name] = summed.get(name, 0.0) + value
    return summed


def sample(before: Sample, after: Sample, stats: RequestStats) -> Sample:
    """Milliseconds per cycle by phase, tok/s, and acceptance length of one request."""
    count = after["count"] - before["count"]
    phases = {name: s_to_ms(after[name] - before.get(name, 0.0)) / count for name in after if name.endswith("_s")}
    return {
        **{f"{name.removesuffix('_s')}_ms": value for name, value in phases.items()},
        "tok_s": (stats.num_output_tokens - 1) / stats.decode_s,
        "accept_length": stats.accept_length,
    }


def report(name: str, samples: Mapping[str, Sequence[Sample]]) -> None:
    """Median and the quarters of every number, one line each."""
    for arm, of_arm in samples.items():
        print(f"{name}, {arm}")
        for key in of_arm[0]:
            values = [one[key] for one in of_arm]
            low, _, high = quantiles(values, n=4)
            print(f"  {key:24} {median(values):8.3f}   [{low:.3f} .. {high:.3f}]")


def main() -> None:
    """Measure every setting and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-prompts", type=int, default=8)
    parser.add_argument("--num-tokens", type=int, default=96)
    parser.add_argument("--only", choices=SETTINGS, action="append", help="measure only this setting; may be repeated")
    parser.add_argument("--out", type=Path, help="write the record here")
    arguments = parser.parse_args()
    tokenizer = Tokenizer.load(bundled.target_dir())
    prompts = [tuple(tokenizer.encode(one.text)) for one in bundled.prompts("code")[: arguments.num_prompts]]
    results = {}
    for name in arguments.only or SETTINGS:
        results[name] = measure(EngineConfig(**SETTINGS[name]), prompts, arguments.num_tokens)
        report(name, results[name])
    if arguments.out is not None:
        settings = {"settings": SETTINGS, "num_prompts": len(prompts), "num_tokens": arguments.num_tokens}
        write_record(arguments.out, question=str(__doc__).splitlines()[0], settings=settings, results=results)


if __name__ == "__main__":
    main()
