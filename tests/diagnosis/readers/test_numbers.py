"""Metrics pages, benchmark outputs, server_info, model configs and our own files."""

import json

import pytest

from fastverify.diagnosis.readers.arm_names import arm_from_name
from fastverify.diagnosis.readers.bench_json import read_bench_json
from fastverify.diagnosis.readers.bench_text import read_bench_text
from fastverify.diagnosis.readers.metrics_page import read_metrics_page
from fastverify.diagnosis.readers.model_json import read_model_json
from fastverify.diagnosis.readers.own_records import read_bench_record, read_measurement
from fastverify.diagnosis.readers.responses import read_response
from fastverify.diagnosis.readers.server_info import read_server_info
from tests.diagnosis.readers import texts

VLLM_PAGE = """\
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 300.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 900.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 303.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 168.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 90.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"} 10.0
vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 300.0
"""
SGLANG_PAGE = """\
sglang:spec_accept_length{model_name="m",tp_rank="0"} 2.05
sglang:spec_num_draft_tokens{model_name="m",tp_rank="0"} 4.0
sglang:spec_verify_calls_total{model_name="m"} 1000.0
sglang:forward_execution_seconds_total{category="target_verify",model_name="m"} 30.0
sglang:forward_execution_seconds_total{category="eagle_draft",model_name="m"} 2.0
"""


def named(reading) -> dict[str, object]:
    assert reading is not None
    return {piece.name: piece.value for piece in reading.evidence}


def test_vllm_page_counts_without_the_bonus_token():
    found = named(read_metrics_page(texts.document(VLLM_PAGE)))
    assert found["accept_length"] == pytest.approx(2.01)
    assert found["accept_rate"] == pytest.approx(303 / 900)
    assert found["itl_ms"] == pytest.approx(33.33, abs=0.01)
    reading = read_metrics_page(texts.document(VLLM_PAGE))
    assert reading is not None
    assert reading.values("accept_rate_per_position") == pytest.approx((0.56, 0.3))


def test_sglang_page_of_two_releases():
    found = named(read_metrics_page(texts.document(SGLANG_PAGE)))
    assert (found["accept_length"], found["num_verify_tokens"]) == (2.05, 4)
    assert (found["verify_ms"], found["draft_ms"]) == (30.0, 2.0)
    early = named(read_metrics_page(texts.document(SGLANG_PAGE.splitlines()[0])))
    assert early == {"server": "sglang", "accept_length": 2.05}


def test_sglang_page_under_load_gives_a_rate_of_its_arm():
    load = 'sglang:gen_throughput{m="a"} 120.0\nsglang:num_running_reqs{m="a"} 2.0\n'
    for page, arm, length in (
        (SGLANG_PAGE, "speculative", 2.05),
        ('sglang:spec_accept_length{m="a"} 0.0\n', "plain", None),
    ):
        reading = read_metrics_page(texts.document(page + load))
        assert reading is not None
        (rate,) = reading.rates
        assert (rate.arm, rate.total_tok_s, rate.batch, rate.accept_length) == (arm, 120.0, 2, length)


def test_a_page_inside_other_text_and_a_damaged_page():
    assert named(read_metrics_page(texts.document(f"what curl says:\n{VLLM_PAGE}\nThe vllm: page ends.")))
    reading = read_metrics_page(texts.document('vllm:x{a="b" 1\n'))
    assert reading is not None
    assert reading.notes


def test_bench_tables_of_both_servers():
    reading = read_bench_text(texts.document(texts.SGLANG_BENCH + texts.VLLM_BENCH))
    assert reading is not None
    sglang, vllm = reading.rates
    assert (sglang.arm, sglang.batch, sglang.total_tok_s, sglang.accept_length) == ("speculative", 8, 183.8, 2.14)
    assert (vllm.arm, vllm.batch, vllm.total_tok_s, vllm.accept_length) == ("speculative", 1, 60.0, 2.01)
    assert vllm.accept_rate_per_position == (0.56, 0.3)


def test_an_sglang_table_without_an_acceptance_length_is_plain_and_a_vllm_one_could_be_either():
    without = texts.SGLANG_BENCH.replace("Accept length:                           2.14\n", "")
    reading = read_bench_text(texts.document(without))
    assert reading is not None
    assert reading.rates[0].arm == "plain"
    head = texts.VLLM_BENCH.partition("---------------Spec")[0]
    reading = read_bench_text(texts.document(head))
    assert reading is not None
    assert (reading.rates[0].arm, len(reading.notes)) == ("both", 1)
    reading = read_bench_text(texts.document(head, "run/plain_b1.txt"))
    assert reading is not None
    assert reading.rates[0].arm == "plain"


@pytest.mark.parametrize(
    ("result", "arm", "tok_s", "batch", "length"),
    [
        (
            {"output_throughput": 60.0, "mean_ttft_ms": 1, "max_concurrency": 1, "spec_decode_acceptance_length": 2.01},
            *("speculative", 60.0, 1, 2.01),
        ),
        (
            {
                "output_throughput": 82.0,
                "mean_ttft_ms": 1,
                "concurrency": 3.9,
                "max_concurrency": None,
                "accept_length": None,
            },
            *("plain", 82.0, 4, None),
        ),
        ({"output_throughput": 50.0, "acc_length": 2.5, "batch_size": 2}, "speculative", 50.0, 2, 2.5),
        ({"step_time": 0.02, "acc_length": 2.0, "batch_size": 4, "steps": 3}, "speculative", 400.0, 4, 2.0),
        (
            {
                "output_token_throughput": {"avg": 90.0, "unit": "tokens/sec"},
                "input_config": {"loadgen": {"concurrency": 2}},
            },
            *("both", 90.0, 2, None),
        ),
        (
            {"benchmarks": [{"metrics": {"output_tokens_per_second": {"successful": {"mean": 70.0}}}}]},
            *("both", 70.0, 1, None),
        ),
    ],
    ids=["vllm", "sglang", "one-batch", "sweep", "aiperf", "guidellm"],
)
def test_result_files(result, arm, tok_s, batch, length):
    reading = read_bench_json(texts.document(json.dumps(result, indent=1)))
    assert reading is not None
    (rate,) = reading.rates
    assert (rate.arm, rate.total_tok_s, rate.batch, rate.accept_length) == (arm, tok_s, batch, length)
    assert rate.line is not None


def test_json_lines_give_one_rate_each():
    lines = "\n".join(json.dumps({"output_throughput": 10.0 * n, "acc_length": 2.0, "batch_size": n}) for n in (1, 2))
    reading = read_bench_json(texts.document(lines))
    assert reading is not None
    assert [rate.batch for rate in reading.rates] == [1, 2]


def test_server_info_gives_settings_acceptance_and_step_times():
    info = {
        "tp_size": 8,
        "speculative_algorithm": "EAGLE3",
        "speculative_num_draft_tokens": 4,
        "version": "0.5.23",
        "internal_states": [{"avg_spec_accept_length": 2.0, "step_time_dict": {"1": [0.033, 0.034, 0.0333]}}],
    }
    reading = read_server_info(texts.document(json.dumps(info)))
    found = named(reading)
    assert (found["server_version"], found["accept_length"], found["tp"]) == ("0.5.23", 2.0, 8)
    assert reading is not None
    assert reading.rates[0].total_tok_s == pytest.approx(60.06, abs=0.01)


KIMI = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "text_config": {
        "hidden_size": 7168,
        "num_hidden_layers": 61,
        "num_attention_heads": 64,
        "intermediate_size": 18432,
        "vocab_size": 163840,
        "n_routed_experts": 384,
        "num_experts_per_tok": 8,
        "dtype": "bfloat16",
        "quantization_config": {"quant_method": "compressed-tensors"},
    },
}


def test_model_config_gives_sizes_and_a_draft_model_its_layers():
    found = named(read_model_json(texts.document(json.dumps(KIMI))))
    assert (found["model.num_layers"], found["model.hidden_size"]) == (61, 7168)
    assert (found["model.num_experts"], found["model.num_experts_per_token"]) == (384, 8)
    assert found["model.quantization"] == "compressed-tensors"
    draft = KIMI["text_config"] | {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1}
    assert named(read_model_json(texts.document(json.dumps(draft)))) == {"model.num_draft_layers": 1.0}
    broken = read_model_json(texts.document(json.dumps({"architectures": ["X"], "hidden_size": "wide"})))
    assert broken is not None
    assert broken.notes


def test_bench_record_holds_every_backend():
    rows = [
        {"num_bytes": 57344, "backend": "gloo", "median_us": 330.0, "fused": False, "correct": True},
        {"num_bytes": 57344, "backend": "shm", "median_us": 5.0, "fused": False, "correct": True},
    ]
    found = named(read_bench_record(texts.document(json.dumps({"rows": rows, "settings": {"world_size": 2}}))))
    assert found == {
        "bench.us.gloo.57344": 330.0,
        "bench.us.fastverify.57344": 5.0,
        "bench.world_size": 2.0,
        "tp": 2.0,
    }


def test_bench_record_of_gpus_is_read_as_servers_run_it():
    row = {
        "num_bytes": 57344,
        "backend": "nccl",
        "fused": False,
        "correct": True,
        "mode": "graph",
        "setting": "default",
    }
    rows = [
        row | {"median_us": 12.0},
        row | {"median_us": 9.0, "setting": "ll"},
        row | {"median_us": 30.0, "mode": "eager"},
        row | {"median_us": 2.0, "backend": "push", "setting": None},
    ]
    found = named(read_bench_record(texts.document(json.dumps({"rows": rows}))))
    assert found == {"bench.us.nccl.57344": 12.0, "bench.us.push.57344": 2.0}


def test_measurement_of_a_campaign(measurement):
    reading = read_measurement(texts.document(measurement.model_dump_json(indent=1)))
    found = named(reading)
    assert found["verify_all_reduce_ms"] > 0
    assert reading is not None
    assert {rate.arm for rate in reading.rates} == {"plain", "speculative"}


@pytest.mark.parametrize(
    ("name", "arm"),
    [("a/plain.json", "plain"), ("eagle3_b1.json", "speculative"), ("no-spec.json", "plain"), ("run1.json", "both")],
)
def test_arm_by_name(name, arm):
    assert arm_from_name(name) == arm


@pytest.mark.parametrize(
    ("answer", "length"),
    [
        ({"text": "x", "meta_info": {"completion_tokens": 60, "spec_verify_ct": 30}}, 2.0),
        ({"choices": [], "metrics": {"speculative_decoding": {"mean_acceptance_length": 1.25}}}, 1.25),
    ],
)
def test_one_answer_tells_its_acceptance_length(answer, length):
    assert named(read_response(texts.document(json.dumps(answer))))["accept_length"] == length
    assert read_response(texts.document(json.dumps({"meta_info": {"completion_tokens": 60}}))) is None
