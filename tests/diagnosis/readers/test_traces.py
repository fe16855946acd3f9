"""Profiler files as evidence: the anatomy of a cycle without a rate, ranks of one run together."""

from pathlib import Path

import pytest

from fastverify.diagnosis.collect import collect
from fastverify.trace.breakdown import analyse
from fastverify.trace.many import read_traces

TRACES = Path(__file__).resolve().parents[4] / "shared" / "traces"
RANKS = [TRACES / f"vllm-h200-eagle3-nvlink-rank{rank}.pt.trace.json.gz" for rank in (0, 1)]
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="the recorded traces lie beside a full checkout only")


@needs_traces
def test_two_ranks_of_one_run_are_one_anatomy():
    result = collect(RANKS)
    facts = result.facts
    assert len(result.kinds) == 1
    assert (facts.tp, facts.batch, facts.num_verify_tokens, facts.all_reduces_per_verify) == (2, 1, 4, 65)
    assert facts.all_reduce_backend == "custom"
    assert facts.verify_ms is not None
    assert facts.verify_all_reduce_ms is not None
    assert 0 < facts.verify_all_reduce_ms < facts.verify_ms
    assert facts.draft_collectives_per_cycle == 12
    assert facts.speculative_tok_s is None, "a profiler slows the host, so a trace gives no rate"


@needs_traces
def test_a_printed_profile_says_the_same_as_its_trace(tmp_path: Path):
    printed = tmp_path / "profile.json"
    printed.write_text(analyse(read_traces([*RANKS])).profile.model_dump_json(indent=1))
    assert collect([printed]).facts == collect(RANKS).facts


def test_a_trace_that_cannot_be_read_is_listed(tmp_path: Path):
    (tmp_path / "a.pt.trace.json").write_text('{"schemaVersion": 1, "deviceProperties": [], "traceEvents": 5')
    assert len(collect([tmp_path]).unknown) == 1
