"""Turns a conversation into one prompt with the model's own jinja template, or with a plain one of ours.

A template comes from `chat_template.jinja` or the `chat_template` of tokenizer_config.json. It is a program that came
with a download, so it runs in jinja's immutable sandbox. Models without one (such as the bundled model, which is
trained on code, documentation and question-answer pairs, not on conversations) get PLAIN_TEMPLATE.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fastverify.errors import ConfigError

# System text, blank line, "Q: ...", "A: ...", blank line, and "A:" at the end: the bundled model's question data.
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
    """The template in a checkpoint's folder, or the plain one."""
    config_path, template_path = model_dir / "tokenizer_config.json", model_dir / "chat_template.jinja"
    config: dict[str, Any] = json.loads(config_path.read_text(encoding="utf-8")) if config_path.is_file() else {}
    source = template_path.read_text(encoding="utf-8") if template_path.is_file() else _default_source(config.get("chat_template"))
    if source is None:
        return ChatTemplate()
    special = {name: _token_text(config[name]) for name in ("bos_token", "eos_token") if config.get(name)}
    return ChatTemplate(source, (), special)


def _default_source(value: str | list[dict[str, str]] | None) -> str | None:
    """A checkpoint may hold several named templates; the one for conversations is called default."""
    if isinstance(value, list):
        return {one["name"]: one["template"] for one in value}.get("default")
    return value


def _token_text(value: str | dict[str, Any]) -> str:
    return value if isinstance(value, str) else str(value["content"])


def _environment() -> ImmutableSandboxedEnvironment:
    """The names that templates of Hugging Face checkpoints rely on."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    return environment


def _raise_exception(message: str) -> None:
    raise TemplateError(message)
