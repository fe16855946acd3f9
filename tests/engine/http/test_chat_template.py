import json
from pathlib import Path
from typing import Any

import pytest

from fastverify.engine.http.chat_template import PLAIN_STOPS, ChatTemplate, read_chat_template
from fastverify.errors import ConfigError

TALK = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "Bye"}]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write(folder: Path, **config: Any) -> Path:
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_plain_template(tmp_path: Path) -> None:
    template = read_chat_template(tmp_path)
    assert template.render(TALK) == "Q: Hi\nA: Yes?\n\nQ: Bye\nA:"
    assert template.is_plain
    assert template.stops == PLAIN_STOPS


@pytest.mark.parametrize(
    "value", [CHATML, [{"name": "tools", "template": "x"}, {"name": "default", "template": CHATML}]]
)
def test_template_of_the_checkpoint(tmp_path: Path, value: Any) -> None:
    template = read_chat_template(write(tmp_path, chat_template=value))
    assert template.render(TALK[:1]) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert (template.is_plain, template.stops) == (False, ())


def test_file_comes_before_the_config_and_sees_the_special_tokens(tmp_path: Path) -> None:
    write(tmp_path, chat_template=CHATML, bos_token={"content": "<s>"}, eos_token="</s>")
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ messages | tojson }}{{ eos_token }}")
    assert read_chat_template(tmp_path).render(TALK[:1]) == '<s>[{"role": "user", "content": "Hi"}]</s>'


def test_a_template_that_refuses_says_why(tmp_path: Path) -> None:
    template = ChatTemplate("{{ raise_exception('no system role') }}")
    with pytest.raises(ConfigError, match="cannot take these messages: no system role"):
        template.render(TALK)


@pytest.mark.parametrize(
    "source",
    ["{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages.append(1) }}", "{{ cycler.__init__.__globals__ }}"],
)
def test_a_template_cannot_leave_its_sandbox(source: str) -> None:
    with pytest.raises(ConfigError, match="unsafe|safely"):
        ChatTemplate(source).render(TALK)


def test_a_template_that_is_no_jinja_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be a jinja template"):
        read_chat_template(write(tmp_path, chat_template="{% for %}"))


@pytest.mark.parametrize("content", ["{", "[]", '{"chat_template": 5}', '{"chat_template": [{"name": "default"}]}'])
def test_a_damaged_tokenizer_config_is_refused_at_start(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(ConfigError, match="chat template of .* cannot be read"):
        read_chat_template(tmp_path)
