"""Two releases of each server's log give the same names, by the definitions of docs/glossary.md."""

import pytest

from fastverify.diagnosis.readers.log_messages import without_prefix
from fastverify.diagnosis.readers.sglang_log import read_sglang_log
from fastverify.diagnosis.readers.vllm_log import read_vllm_log
from tests.diagnosis.readers import texts


def test_sglang_decode_lines_of_a_steady_batch_give_the_rate():
    reading = read_sglang_log(texts.document(texts.SGLANG_0_5_5))
    assert reading is not None
    first, second = reading.rates
    assert (first.arm, first.batch, first.total_tok_s, first.accept_length) == ("speculative", 1, 60.0, 2.0)
    assert first.num_samples == 3, "the sample that holds the idle time before it must not count"
    assert (second.batch, second.total_tok_s) == (2, 99.0)
    lines = texts.SGLANG_0_5_5.splitlines()
    assert "gen throughput (token/s): 60.00" in lines[first.line - 1]


def test_sglang_settings_and_decisions():
    reading = read_sglang_log(texts.document(texts.SGLANG_0_5_5))
    assert reading is not None
    assert reading.values("method") == ("eagle3",)
    assert reading.values("num_verify_tokens") == (4.0,)
    assert reading.values("tp") == (8.0,)
    assert reading.values("log.cuda_graph_share") == (0.8,)
    assert reading.values("log.max_running_requests") == (48.0,)
    assert reading.values("log.custom_all_reduce_disabled") == (f"Custom allreduce {texts.PCIE_GATE}",)
    assert reading.values("hardware.packages.nccl") == ("2.27.3",)
    assert reading.values("accept_rate") == (), "the line's rate has two definitions and no way to tell them apart"


def test_sglang_prints_its_settings_as_an_object_or_as_a_dictionary():
    reading = read_sglang_log(texts.document(texts.SGLANG_0_5_23_PLAIN))
    assert reading is not None
    assert reading.values("tp") == (8.0,)
    assert reading.values("method") == ()
    assert reading.values("log.cuda_graph_max_batch") == (32.0,)
    assert [(rate.arm, rate.total_tok_s) for rate in reading.rates] == [("plain", 82.0)]


def test_vllm_intervals_settings_and_backends():
    reading = read_vllm_log(texts.document(texts.VLLM_0_33))
    assert reading is not None
    (rate,) = reading.rates
    assert (rate.arm, rate.batch, rate.total_tok_s, rate.accept_length) == ("speculative", 1, 60.1, 2.01)
    assert rate.accept_rate_per_position == (0.56, 0.3, 0.15)
    assert reading.values("log.all_reduce_backends") == ("FLASHINFER_PCIE_IPC", "PYNCCL")
    assert reading.values("log.cuda_graph_mode_requested")[0] == "FULL_AND_PIECEWISE"
    assert reading.values("log.cuda_graph_mode") == ("PIECEWISE",)
    assert reading.values("server_version") == ("0.33.0",)
    assert set(reading.values("num_verify_tokens")) == {4.0}
    assert reading.values("log.engaged")[0].startswith("Initialized FlashInfer PCIe IPC")
    assert reading.values("accept_rate") == (pytest.approx(0.337),)


def test_first_vllm_engine_gives_the_counts_from_which_the_length_follows():
    reading = read_vllm_log(texts.document(texts.VLLM_0_6))
    assert reading is not None
    (rate,) = reading.rates
    # 15000 drafts in chains of 3 are 5000 passes, which emitted 11000 tokens.
    assert (rate.arm, rate.batch, rate.total_tok_s) == ("speculative", 2, 80.0)
    assert rate.accept_length == pytest.approx(2.2)
    assert reading.values("tp") == (4.0,)


def test_a_vllm_log_without_a_drafter_is_plain():
    text = texts.VLLM_0_33.replace("'speculative_config': {", "'x': {").replace("SpeculativeConfig(", "None, y=f(")
    plain = "\n".join(line for line in text.splitlines() if "SpecDecoding" not in line)
    reading = read_vllm_log(texts.document(plain))
    assert reading is not None
    assert [rate.arm for rate in reading.rates] == ["plain"]


@pytest.mark.parametrize(
    "line",
    [
        "[2025-11-20 10:00:09 TP0] text of it",
        "(Worker_TP0 pid=3) WARNING 11-20 08:00:09 [custom_all_reduce.py:269] text of it",
        "WARNING 02-22 22:09:01 custom_all_reduce.py:136] text of it",
    ],
)
def test_prefixes_of_all_log_formats_are_cut(line):
    assert without_prefix(line) == "text of it"
