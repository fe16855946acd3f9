from multiprocessing.connection import Connection, Pipe

import pytest

from fastverify.engine import outbox
from fastverify.engine.commands import Events
from fastverify.engine.outbox import Outbox
from fastverify.engine.request import TokenEvent


def received(connection: Connection) -> list[Events]:
    messages = []
    while connection.poll(0):
        messages.append(connection.recv())
    return messages


def token(request_id: str, *token_ids: int, finished: bool = False) -> TokenEvent:
    return TokenEvent(request_id, token_ids, finished)


def test_first_tokens_and_ends_go_at_once_and_the_rest_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(outbox, "monotonic", lambda: now_s)
    ours, theirs = Pipe()
    made = Outbox(theirs)
    made.add([token("a", 1)])
    assert received(ours) == [Events((token("a", 1),))]
    made.add([token("a", 2)])
    made.add([token("a", 3, 4)])
    assert received(ours) == []
    made.add([token("b", 9)])
    assert received(ours) == [Events((token("a", 2, 3, 4), token("b", 9)))]
    made.add([token("a", 5)])
    now_s += 0.1
    made.add([])
    assert received(ours) == [Events((token("a", 5),))]
    made.add([token("b", 8)])
    made.add([token("b", finished=True)])
    assert received(ours) == [Events((token("b", 8, finished=True),))]
    ours.close()
    theirs.close()
