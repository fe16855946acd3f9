from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from fastverify.engine.tokenizer import Tokenizer
from fastverify.errors import ConfigError


def byte_level_tokenizer() -> Tokenizer:
    """Byte-level BPE with few merges, so that most characters beyond ASCII span several tokens."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    backend.train_from_iterator(["def the(self): return the\n"] * 9, trainer)
    return Tokenizer(backend)


TOKENIZER = byte_level_tokenizer()


@settings(deadline=None, max_examples=60)
@given(text=st.text(), cuts=st.lists(st.integers(1, 4), min_size=1))
def test_pieces_join_to_the_whole_text_and_never_cut_a_character(text: str, cuts: list[int]) -> None:
    ids = TOKENIZER.encode(text)
    decoder, pieces, position = TOKENIZER.decoder(), [], 0
    while position < len(ids):
        step = cuts[position % len(cuts)]
        pieces.append(decoder.push(ids[position : position + step]))
        position += step
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) + decoder.finish() == TOKENIZER.decode(ids) == text


def test_an_answer_that_ends_inside_a_character_shows_it_as_broken() -> None:
    ids = TOKENIZER.encode("a\U0001f600")
    decoder = TOKENIZER.decoder()
    assert decoder.push(ids[:-1]) == ""
    assert decoder.finish().strip("\ufffd") == "a"


def test_special_tokens_are_not_text() -> None:
    decoder = TOKENIZER.decoder()
    assert decoder.push([0]) + decoder.push(TOKENIZER.encode("the")) + decoder.push([0]) + decoder.finish() == "the"


@pytest.mark.parametrize("content", [None, "{}"])
def test_missing_and_damaged_files_are_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)
