"""Turns a conversation into one prompt with the model's own jinja template, or with a plain one of ours.

A template comes from `chat_template.jinja` or the `chat_template` of tokenizer_config.json. It is a program that came
with a download, so it runs in jinja's immutable sandbox. Models without one get PLAIN_TEMPLATE.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import BaseModel, ValidationError

from fastverify.errors import ConfigError

# System text, blank line, "Q: ...", "A: ...", blank line, and "A:" at the end.
PLAIN_TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role == "system" -%}{{ message.content + "\n\n" }}
{%- elif message.role == "user" -%}{{ "Q: " + message.content + "\n" }}
{%- else -%}{{ "A: " + message.content + "\n\n" }}
{%- endif -%}
{%- endfor -%}
{{- "A:" -}}
"""
# Without an end-of-turn token in training, the next question is where an answer ends.
PLAIN_STOPS = ("\nQ:",)


@dataclass(frozen=True)
class ChatTemplate:
    """A template and the texts that end an answer. Raises ConfigError for a template that is not jinja."""

    source: str = PLAIN_TEMPLATE
    stops: tuple[str, ...] = PLAIN_STOPS
    special_tokens: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            _environment().from_string(self.source)
        except TemplateError as error:
            raise ConfigError(f"the model's chat template must be a jinja template, but: {error}.") from error

    @property
    def is_plain(self) -> bool:
        """Whether it names no special tokens itself, so that the tokenizer has to add them."""
        return self.source == PLAIN_TEMPLATE

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        """The prompt, ending where the answer begins. Raises ConfigError when the template refuses the messages."""
        template = _environment().from_string(self.source)
        try:
            return template.render(messages=messages, add_generation_prompt=True, **self.special_tokens)
        except (TemplateError, TypeError, ValueError) as error:
            raise ConfigError(f"the model's chat template cannot take these messages: {error}.") from error


def read_chat_template(model_dir: Path) -> ChatTemplate:
    """The template in a checkpoint's folder, or the plain one. Raises ConfigError for files that are damaged."""
    config_path, template_path = model_dir / "tokenizer_config.json", model_dir / "chat_template.jinja"
    try:
        config = _TokenizerConfig.model_validate_json(config_path.read_bytes() if config_path.is_file() else b"{}")
        source = template_path.read_text(encoding="utf-8") if template_path.is_file() else config.default_template
    except (ValidationError, UnicodeDecodeError) as error:
        raise ConfigError(f"the chat template of {model_dir} cannot be read: {error}. Fetch it again.") from error
    return ChatTemplate() if source is None else ChatTemplate(source, (), config.special_tokens)


class _Token(BaseModel):
    content: str


class _NamedTemplate(BaseModel):
    name: str
    template: str


class _TokenizerConfig(BaseModel):
    """What is read of tokenizer_config.json; it has many more fields."""

    chat_template: str | list[_NamedTemplate] | None = None
    bos_token: str | _Token | None = None
    eos_token: str | _Token | None = None

    @property
    def default_template(self) -> str | None:
        """A checkpoint may hold several named templates; the one for conversations is called default."""
        if isinstance(self.chat_template, list):
            return {one.name: one.template for one in self.chat_template}.get("default")
        return self.chat_template

    @property
    def special_tokens(self) -> dict[str, str]:
        """The names that a template may use."""
        tokens = {"bos_token": self.bos_token, "eos_token": self.eos_token}
        texts = {name: token.content if isinstance(token, _Token) else token for name, token in tokens.items()}
        return {name: text for name, text in texts.items() if text}


def _environment() -> ImmutableSandboxedEnvironment:
    """The names that templates of Hugging Face checkpoints rely on."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    return environment


def _raise_exception(message: str) -> None:
    raise TemplateError(message)
