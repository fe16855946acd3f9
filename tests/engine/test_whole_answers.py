from dataclasses import replace

from fastverify.engine.request import Request, TokenEvent
from tests.engine.tiny import core_of, drain, prompts, requests, settings


def events_of(models: dict[str, str], todo: list[Request]) -> list[TokenEvent]:
    core = core_of(settings(models))
    for request in todo:
        core.submit(request)
    return drain(core)


def test_an_answer_that_is_not_streamed_is_one_event_with_the_same_tokens(models: dict[str, str]) -> None:
    todo = requests(prompts(3, seed=4), 10)
    streamed = events_of(models, todo)
    whole = events_of(models, [replace(request, stream=False) for request in todo])
    assert len(streamed) > len(whole) == len(todo)
    for event in whole:
        tokens = [token for one in streamed if one.request_id == event.request_id for token in one.token_ids]
        assert list(event.token_ids) == tokens
        assert event.finished
        assert event.stats is not None
        assert event.stats.num_output_tokens == len(tokens)
