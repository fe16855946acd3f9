"""Launch commands as people paste them: wrappers, line ends, JSON values, environment in front."""

import pytest

from fastverify.diagnosis.readers.launch_command import parse_command, read_launch_commands
from fastverify.diagnosis.readers.server_config import read_server_config
from fastverify.diagnosis.readers.version_pins import read_version_pins
from tests.diagnosis.readers import texts

SGLANG = r"""
NCCL_P2P_LEVEL=SYS SGLANG_X=1 numactl --cpunodebind=0 python3 -m sglang.launch_server \
    --model-path /models/m \
    --speculative-algo EAGLE3 --speculative-num-steps 3 \
    --speculative-eagle-topk 1 --tp 8 --trust-remote-code 2>&1 | tee log.txt
"""
VLLM = r"""$ docker run --gpus all -e NCCL_ALGO=Tree --ipc=host vllm/vllm-openai:v0.11.0 --model m -tp 8 \
    --speculative-config '{"method": "eagle3", "model": "h", "num_speculative_tokens": 3}'"""


def values(text: str) -> dict[str, object]:
    reading = read_launch_commands(texts.document(text))
    assert reading is not None
    return {piece.name: piece.value for piece in reading.evidence}


def test_sglang_command_with_wrappers_and_line_ends():
    found = values(SGLANG)
    assert found["server"] == "sglang"
    assert (found["method"], found["num_draft_steps"], found["top_k"], found["tp"]) == ("eagle3", 3, 1, 8)
    assert found["num_verify_tokens"] == 4, "the server makes a chain's verify tokens steps + 1"
    assert found["launch.env.NCCL_P2P_LEVEL"] == "SYS"
    assert found["launch.flags.trust-remote-code"] == "true"
    assert not any("tee" in str(value) for value in found.values())


def test_vllm_image_with_json_and_environment():
    found = values(VLLM)
    assert (found["server"], found["tp"], found["num_verify_tokens"]) == ("vllm", 8, 4)
    assert found["launch.env.NCCL_ALGO"] == "Tree"
    assert found["draft_model"] == "h"


@pytest.mark.parametrize(
    ("command", "num_verify_tokens", "method"),
    [
        ("vllm serve m --spec-method ngram --spec-tokens 4", 5, "ngram"),
        ("vllm serve m --speculative-config.method mtp --speculative-config.num_speculative_tokens 2", 3, "mtp"),
        (
            "python -m vllm.entrypoints.openai.api_server --speculative-model [ngram] --num-speculative-tokens 5",
            6,
            "ngram",
        ),
        (
            r"""bash -c "vllm serve m -sc '{\"method\":\"eagle3\",\"num_speculative_tokens\":1}'" """,
            2,
            "eagle3",
        ),
        (
            "srun -N1 sglang serve --model m --speculative-algorithm NGRAM --speculative-num-draft-tokens 12",
            12,
            "ngram",
        ),
    ],
)
def test_every_spelling_of_a_drafter(command, num_verify_tokens, method):
    found = values(command)
    assert (found["num_verify_tokens"], found["method"]) == (num_verify_tokens, method)


def test_a_command_without_a_drafter_is_the_plain_arm():
    reading = read_launch_commands(texts.document("vllm serve m -tp 4"))
    assert reading is not None
    assert {piece.arm for piece in reading.evidence if piece.name == "tp"} == {"plain"}


def test_text_that_only_mentions_a_server_is_no_command():
    assert parse_command("we started vllm and serve traffic") is None
    assert read_launch_commands(texts.document("sglang.launch_server is the module, vllm serve is the command")) is None


def test_yaml_configuration_of_a_server():
    text = "model: m\ntensor-parallel-size: 8\nspeculative-config:\n  method: eagle3\n  num_speculative_tokens: 3\n"
    reading = read_server_config(texts.document(text))
    assert reading is not None
    assert reading.values("num_verify_tokens") == (4.0,)
    assert reading.values("launch.flags.tensor-parallel-size") == (8.0,)
    assert read_server_config(texts.document("model: m\nplain_tok_s: 8\n")) is None


@pytest.mark.parametrize(
    "text",
    [
        '    command: ["vllm", "serve", "m", "--tensor-parallel-size", "8", "-sc", "{\\"method\\": \\"ngram\\"}"]',
        'args:\n  - vllm\n  - serve\n  - m\n  - "--tensor-parallel-size=8"\n  - --spec-method\n  - ngram\nname: x\n',
        "command: >\n  vllm serve m\n  --tensor-parallel-size 8\n  --spec-method ngram\n",
    ],
    ids=["json list", "manifest", "compose"],
)
def test_commands_of_containers(text):
    found = values(text)
    assert (found["tp"], found["method"], found["launch.flags.tensor-parallel-size"]) == (8, "ngram", "8")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("docker run lmsysorg/sglang:v0.5.9-cu129 python -m sglang.launch_server --model m", "0.5.9"),
        ("image: vllm/vllm-openai:v0.11.0", "0.11.0"),
        ("uv pip install 'sglang[all]==0.5.10.post1'", "0.5.10.post1"),
        ("we like vllm: v8 is fast", None),
    ],
)
def test_the_release_where_it_is_pinned(text, version):
    reading = read_version_pins(texts.document(text))
    assert (reading.values("server_version")[0] if reading else None) == version
