"""What a client may send. Unknown fields are errors, so that a misspelt one is never silently ignored.

Fields of the OpenAI API that this engine cannot honour are accepted at the value that changes nothing and refused at
any other. Extensions: speculative, ignore_eos, stop_token_ids, return_token_ids. Knows no model and no tokenizer.
Source: https://platform.openai.com/docs/api-reference/completions and .../chat.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from fastverify.engine.http.errors import shown

# Arbitrary: as many as the OpenAI API takes; every one is looked for after every token.
MAX_STOPS = 4
# Field -> values that ask for nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "echo": (None, False),
    "logprobs": (None, False, 0),
    "top_logprobs": (None, 0),
    "top_p": (None, 1),
    "top_k": (None, -1, 0),
    "min_p": (None, 0),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "logit_bias": (None, {}),
    "suffix": (None, ""),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}),
}


class StreamOptions(BaseModel):
    """Options of a streamed answer."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool = False


class GenerationRequest(BaseModel):
    """Fields that completions and chat share."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, fields: Any) -> Any:
        """Null means absent, as in the OpenAI API, and clients do send it; a field that is unknown stays an error."""
        if not isinstance(fields, dict):
            return fields
        return {key: value for key, value in fields.items() if value is not None or key not in cls.model_fields}

    model: str | None = None
    temperature: float = Field(default=1.0, ge=0.0, le=100.0, allow_inf_nan=False)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    """Accepted and not used."""

    speculative: bool = True
    """False: plain decoding for this request."""
    ignore_eos: bool = False
    stop_token_ids: list[int] = []
    return_token_ids: bool = False
    """Adds `token_ids` to each choice."""

    n: Any = None
    logprobs: Any = None
    top_p: Any = None
    top_k: Any = None
    min_p: Any = None
    frequency_penalty: Any = None
    presence_penalty: Any = None
    repetition_penalty: Any = None
    logit_bias: Any = None

    @field_validator("stop")
    @classmethod
    def _check_stop(cls, stop: str | list[str] | None) -> str | list[str] | None:
        texts = [stop] if isinstance(stop, str) else stop or []
        if len(texts) > MAX_STOPS or not all(texts):
            raise ValueError(f"stop is at most {MAX_STOPS} texts, none of them empty, got {shown(texts)}.")
        return stop

    @field_validator(*NEUTRAL, check_fields=False)
    @classmethod
    def _check_neutral(cls, value: Any, info: ValidationInfo) -> Any:
        neutral = NEUTRAL[info.field_name or ""]
        # True == 1 in Python, but not in JSON.
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral):
            allowed = " or ".join(repr(one) for one in neutral if one is not None)
            raise ValueError(
                f"{info.field_name} must be {allowed} or absent: this engine does not have it, got {shown(value)}."
            )
        return value

    @model_validator(mode="after")
    def _check_stream_options(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream to be true. Remove it, or set stream.")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop texts as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class CompletionRequest(GenerationRequest):
    """Body of POST /v1/completions."""

    prompt: str | list[int]
    max_tokens: int = Field(default=16, ge=1)

    best_of: Any = None
    echo: Any = None
    suffix: Any = None

    @field_validator("prompt", mode="plain")
    @classmethod
    def _check_prompt(cls, prompt: Any) -> str | list[int]:
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
            prompt = prompt[0]
        if isinstance(prompt, str):
            return prompt
        if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
            return prompt
        if isinstance(prompt, list) and prompt and all(isinstance(one, str | list) for one in prompt):
            raise ValueError(f"one prompt per request, got {len(prompt)}. Send them as separate requests at once.")
        raise ValueError(f"prompt must be a text or a non-empty list of token ids, got {type(prompt).__name__}.")


class TextPart(BaseModel):
    """One part of a message's content; this engine has text only."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None

    @property
    def text(self) -> str:
        """The content as one text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(GenerationRequest):
    """Body of POST /v1/chat/completions."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """None in both: up to the end of the context."""

    top_logprobs: Any = None
    tools: Any = None
    tool_choice: Any = None
    response_format: Any = None


class ProfileRequest(BaseModel):
    """Body of POST /start_profile."""

    model_config = ConfigDict(extra="forbid", strict=True)

    output_dir: str | None = None
    """Folder on the server's machine; absent: a new temporary folder."""

    @field_validator("output_dir")
    @classmethod
    def _check_output_dir(cls, output_dir: str | None) -> str | None:
        if output_dir is not None and "\0" in output_dir:
            raise ValueError(f"output_dir must be a path, which has no NUL character, got {shown(output_dir)}.")
        return output_dir
