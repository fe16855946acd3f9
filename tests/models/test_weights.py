"""What the loaders accept, and how they refuse."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fastverify.comm.communicator import single_rank_communicator
from fastverify.errors import ConfigError, UnsupportedError
from fastverify.model_config import Eagle3Config, read_eagle3_config
from fastverify.models.eagle3 import Eagle3Head
from fastverify.models.export import save_draft, save_target
from fastverify.models.llama import LlamaForCausalLM
from fastverify.models.random_weights import write_random_draft
from fastverify.models.weights import load_draft, load_target
from tests.models import eagle3_reference as formulas
from tests.models.conftest import ReferenceModel


@pytest.fixture(scope="module")
def target(reference_models: dict[str, ReferenceModel]) -> LlamaForCausalLM:
    folder = reference_models["llama-tied-llama3"].folder
    return load_target(folder, single_rank_communicator(), capture_layers=(0, 1, 3))


def load_head(folder: Path, target: LlamaForCausalLM) -> Eagle3Head:
    return load_draft(folder, target, single_rank_communicator())


@pytest.mark.parametrize("name", ["llama-tied-llama3", "llama-biased-yarn", "qwen2-linear", "qwen3"])
def test_written_target_is_read_back(name: str, reference_models: dict[str, ReferenceModel], tmp_path: Path) -> None:
    model = load_target(reference_models[name].folder, single_rank_communicator())
    save_target(model, tmp_path, torch.float32, max_shard_bytes=100_000)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    again = load_target(tmp_path, single_rank_communicator())
    assert replace(again.config, torch_dtype="") == replace(model.config, torch_dtype="")
    for (key, value), other in zip(model.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(value, other), key


def test_transformers_reads_what_we_write(reference_models: dict[str, ReferenceModel], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    reference = reference_models["llama-tied-llama3"]
    save_target(load_target(reference.folder, single_rank_communicator()), tmp_path, torch.float32)
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(tmp_path)(reference.token_ids[None]).logits[0]
    torch.testing.assert_close(logits, reference.logits)


def test_names_missing_extra_and_misshapen_tensors(reference_models: dict[str, ReferenceModel], tmp_path: Path) -> None:
    source = reference_models["qwen3"].folder
    tensors = {name: value for file in source.glob("*.safetensors") for name, value in load_file(file).items()}
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    key = "model.layers.1.mlp.up_proj.weight"
    for changed, words in (
        ({name: value for name, value in tensors.items() if name != key}, f"lacks 1 .*{key}"),
        (tensors | {"visual.weight": torch.ones(1)}, r"unknown 1 .*visual\.weight"),
        (tensors | {key: torch.ones(2, 2)}, rf"{key} must have shape \[96, 64\].*got \[2, 2\]"),
    ):
        save_file(changed, tmp_path / "model.safetensors")
        with pytest.raises(ConfigError, match=words):
            load_target(tmp_path, single_rank_communicator())


def test_reads_each_weight_once(reference_models: dict[str, ReferenceModel], tmp_path: Path) -> None:
    """A second copy of the weights under other names, as some repositories have it, is left alone."""
    model = load_target(reference_models["qwen3"].folder, single_rank_communicator())
    save_target(model, tmp_path, torch.float32)
    save_file({"other.name": torch.ones(2)}, tmp_path / "consolidated.safetensors")
    assert torch.equal(load_target(tmp_path, single_rank_communicator()).norm, model.norm)


def test_refuses_broken_files(reference_models: dict[str, ReferenceModel], tmp_path: Path) -> None:
    source = reference_models["qwen3"].folder
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    with pytest.raises(ConfigError, match="holds neither"):
        load_target(tmp_path, single_rank_communicator())
    (tmp_path / "model.safetensors").write_bytes(b"half a file")
    with pytest.raises(ConfigError, match="not a whole safetensors file"):
        load_target(tmp_path, single_rank_communicator())
    index = {"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ConfigError, match="model-00002-of-00002"):
        load_target(tmp_path, single_rank_communicator())
    for broken in ({"weight_map": {"model.norm.weight": 5}}, {"weight_map": 5}, [], {}):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(broken))
        with pytest.raises(ConfigError, match="must hold a JSON object with a weight_map"):
            load_target(tmp_path, single_rank_communicator())


def test_refuses_an_unknown_architecture(reference_models: dict[str, ReferenceModel], tmp_path: Path) -> None:
    raw = json.loads((reference_models["qwen3"].folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(raw | {"architectures": ["MambaForCausalLM"]}))
    with pytest.raises(UnsupportedError, match="MambaForCausalLM.*LlamaForCausalLM, Qwen2ForCausalLM"):
        load_target(tmp_path, single_rank_communicator())


class Exploit:
    """What a hostile pickle would be: it runs a function when loaded."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path("unpickled"),)


def test_reads_a_pickled_head_without_running_it(target: LlamaForCausalLM, tmp_path: Path) -> None:
    tensors = formulas.write_head(tmp_path / "head", 64, 101)
    (tmp_path / "head" / "model.safetensors").unlink()
    renamed = {name.replace("midlayer.", "layers.0."): value for name, value in tensors.items()}
    torch.save(renamed, tmp_path / "head" / "pytorch_model.bin")
    head = load_head(tmp_path / "head", target)
    assert torch.equal(head.input_norm, tensors["midlayer.input_layernorm.weight"])
    torch.save({"fc.weight": Exploit()}, tmp_path / "head" / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="tensors only"):
        load_head(tmp_path / "head", target)


def test_head_says_which_layers_it_reads_and_why(
    target: LlamaForCausalLM, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    formulas.write_head(tmp_path / "head", 64, 101)
    with caplog.at_level(logging.INFO):
        load_head(tmp_path / "head", target)
    assert "(0, 1, 3): fastverify_capture_layers of config.json" in caplog.text


def test_head_must_fit_its_target(reference_models: dict[str, ReferenceModel], tmp_path: Path) -> None:
    formulas.write_head(tmp_path / "head", 64, 101)
    other = load_target(
        reference_models["llama-tied-llama3"].folder, single_rank_communicator(), capture_layers=(1, 2, 3)
    )
    with pytest.raises(ConfigError, match=r"capture layers, got \[0, 1, 3\]"):
        load_head(tmp_path / "head", other)


def test_refuses_a_wrong_vocabulary_map(target: LlamaForCausalLM, tmp_path: Path) -> None:
    tensors = formulas.write_head(tmp_path / "head", 64, 101)
    absolute = tensors["d2t"] + torch.arange(formulas.DRAFT_VOCAB)
    for changed, words in (({"d2t": absolute}, "differences"), ({"t2d": ~tensors["t2d"]}, "differ")):
        save_file(tensors | changed, tmp_path / "head" / "model.safetensors")
        with pytest.raises(ConfigError, match=words):
            load_head(tmp_path / "head", target)


def test_own_embedding_and_missing_output_head(target: LlamaForCausalLM, tmp_path: Path) -> None:
    folder = tmp_path / "head"
    tensors = formulas.write_head(folder, 64, 101)
    shared, other = target.embed_tokens.weight.clone(), torch.randn(101, 64)
    save_file(tensors | {"embed_tokens.weight": shared}, folder / "model.safetensors")
    assert load_head(folder, target).embed_tokens is target.embed_tokens
    save_file(tensors | {"embed_tokens.weight": other}, folder / "model.safetensors")
    assert torch.equal(load_head(folder, target).embed_tokens.weight, other)
    formulas.write_config(folder, 64, 101, draft_vocab_size=None)
    save_file(
        {k: v for k, v in tensors.items() if k not in ("lm_head.weight", "d2t", "t2d")}, folder / "model.safetensors"
    )
    head = load_head(folder, target)
    hidden = torch.randn(3, 64)
    assert torch.equal(head.head.weight, target.head.weight)
    assert torch.equal(head.greedy(hidden), head.logits(hidden).argmax(-1))


def test_written_head_is_read_back(target: LlamaForCausalLM, tmp_path: Path) -> None:
    formulas.write_head(tmp_path / "head", 64, 101, fc_norm=True, norm_output=True)
    head = load_head(tmp_path / "head", target)
    save_draft(head, tmp_path / "again", torch.float32)
    again = load_head(tmp_path / "again", target)
    assert comparable(again.config) == comparable(head.config)
    for (key, value), other in zip(head.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(value, other), key
    raw = json.loads((tmp_path / "again" / "config.json").read_text())
    assert raw["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [-1, 0, 2]


def comparable(config: Eagle3Config) -> Eagle3Config:
    return replace(config, layer=replace(config.layer, torch_dtype=""))


def test_random_head_loads(target: LlamaForCausalLM, tmp_path: Path) -> None:
    formulas.write_head(tmp_path / "head", 64, 101)
    config = read_eagle3_config(tmp_path / "head", target.config)
    write_random_draft(config, tmp_path / "random", seed=5)
    head = load_head(tmp_path / "random", target)
    assert int(head.greedy(torch.randn(200, 64)).max()) > formulas.DRAFT_VOCAB
