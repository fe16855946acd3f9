"""Training the head: it comes to guess the target, from scratch, from another head, and with a smaller vocabulary."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fastverify.comm.communicator import single_rank_communicator
from fastverify.errors import ConfigError
from fastverify.model_config import read_eagle3_config, read_model_config
from fastverify.models.eagle3 import Eagle3Head
from fastverify.models.export import save_draft
from fastverify.models.llama import LlamaForCausalLM
from fastverify.models.weights import load_draft, load_target
from fastverify.training.attention import DraftStepAttention
from fastverify.training.draft import DraftTask, default_capture_layers, soft_cross_entropy, train_draft
from fastverify.training.evaluate import measure_acceptance, run_target, shifted, walk_passes
from fastverify.training.generate import generate, sample
from fastverify.training.loop import LOG_FILE
from fastverify.training.target import held_out_windows
from tests.training.tiny import tiny_draft_options


def load(target: Path, draft: Path) -> tuple[LlamaForCausalLM, Eagle3Head]:
    config = read_eagle3_config(draft, read_model_config(target))
    model = load_target(target, single_rank_communicator(), capture_layers=config.capture_layers)
    return model, load_draft(draft, model, single_rank_communicator(), config=config)


def accept_lengths(folder: Path) -> list[float]:
    records = [json.loads(line) for line in (folder / LOG_FILE).read_text().splitlines()]
    return [record["accept_length/templates"] for record in records if "accept_length/templates" in record]


def test_trained_head_guesses_several_tokens(draft_run: Path) -> None:
    assert accept_lengths(draft_run)[-1] > 2.0


def test_fine_tuning_starts_where_the_other_head_ended(
    corpus: Path, target_run: Path, draft_run: Path, tmp_path: Path
) -> None:
    fresh = tiny_draft_options(corpus, target_run / "model", tmp_path / "fresh", 0)
    tuned = replace(fresh, init_from=draft_run / "model")
    with torch.no_grad():
        fresh_loss, tuned_loss = (float(DraftTask(options).loss(0)) for options in (fresh, tuned))
    assert tuned_loss < 0.6 * fresh_loss
    head = train_draft(replace(tuned, max_steps=3))
    _, before = load(target_run / "model", draft_run / "model")
    assert not torch.equal(head.fc.weight, before.fc.weight)
    assert torch.equal(head.embed_tokens.weight, before.embed_tokens.weight)


def test_smaller_draft_vocabulary(corpus: Path, target_run: Path, tmp_path: Path) -> None:
    options = replace(tiny_draft_options(corpus, target_run / "model", tmp_path, 40), draft_vocab_size=64)
    save_draft(train_draft(options), tmp_path / "model", torch.float32)
    _, head = load(target_run / "model", tmp_path / "model")
    ids = head.to_target_ids(torch.arange(64))
    assert torch.equal(ids, ids.unique())
    assert not torch.equal(head.d2t, torch.zeros_like(head.d2t))
    assert accept_lengths(tmp_path)[-1] > 1.5


def test_teacher_outside_the_draft_vocabulary_costs_nothing() -> None:
    logits = torch.randn(3, 5)
    probs = torch.tensor([[0.0] * 5, [0.2] * 5, [0.0, 1.0, 0.0, 0.0, 0.0]])
    losses = soft_cross_entropy(logits, probs)
    assert losses[0] == 0
    assert losses[1] == pytest.approx(-logits[1].log_softmax(-1).mean())
    assert losses[2] == pytest.approx(-logits[2].log_softmax(-1)[1])


def test_two_layers_are_too_few() -> None:
    assert default_capture_layers(8) == (2, 5, 7)
    with pytest.raises(ConfigError, match="3 or more"):
        default_capture_layers(2)


def test_greedy_generation_is_the_argmax_of_a_whole_pass(corpus: Path, target_run: Path, draft_run: Path) -> None:
    model, _ = load(target_run / "model", draft_run / "model")
    prompts = held_out_windows(corpus, 16, torch.device("cpu"))["templates"][:4]
    sequences = generate(model, prompts, 20, torch.zeros(4))
    expected = model.greedy(run_target(model, sequences).hidden_TD).view(4, -1)
    assert torch.equal(sequences[:, 16:], expected[:, 15:-1])


def test_sampling_follows_the_distribution() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    count, temperature = 20_000, 0.8
    rows = sample(logits.expand(count, 4), torch.full((count,), temperature), torch.Generator().manual_seed(0))
    expected = (logits / temperature).softmax(-1) * count
    chi_square = ((rows.bincount(minlength=4) - expected) ** 2 / expected).sum()
    assert chi_square < 16.3  # 0.1 % quantile of three degrees of freedom


def test_sampled_acceptance_is_the_overlap_of_both_distributions(
    corpus: Path, target_run: Path, draft_run: Path
) -> None:
    model, head = load(target_run / "model", draft_run / "model")
    prompts = held_out_windows(corpus, 32, torch.device("cpu"))["templates"]
    generator = torch.Generator().manual_seed(1)
    sequences = generate(model, prompts, 96, torch.ones(len(prompts)), generator)
    measured = measure_acceptance(model, head, sequences, 32, num_drafts=1, temperature=1.0)
    output = run_target(model, sequences)
    positions = torch.arange(128).repeat(len(sequences))
    hidden = head(
        shifted(sequences, 1).flatten(), head.fuse(output.aux_TAD), positions, DraftStepAttention(len(sequences))
    )
    draft_probs = head.probs(hidden, 1.0).view(len(sequences), 128, -1)[:, 31:-2]
    target_probs = model.logits(output.hidden_TD).softmax(-1).view(len(sequences), 128, -1)[:, 32:-1]
    overlap = torch.minimum(draft_probs, target_probs).sum(-1).mean()
    assert measured.accept_rate_per_position[0] == pytest.approx(float(overlap), abs=0.05)


def test_walk_counts_leading_correct_drafts_and_the_bonus() -> None:
    correct = torch.zeros(1, 12, 2, dtype=torch.bool)
    correct[0, 3] = torch.tensor([True, True])  # current token 4: accepts 2, goes on at 7
    correct[0, 6] = torch.tensor([False, True])  # accepts none, goes on at 8
    correct[0, 7] = torch.tensor([True, False])  # accepts 1, goes on at 10, too near the end
    found = walk_passes(correct, prompt_length=4)
    assert found.num_verify_passes == 3
    assert found.accept_length == pytest.approx(2.0)
    assert found.accept_rate_per_position == pytest.approx((2 / 3, 1 / 3))
