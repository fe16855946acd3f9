from fastverify.engine.config import EngineConfig
from fastverify.engine.request import Request, SamplingParams
from fastverify.engine.scheduler import Scheduler


def scheduler(**settings: int) -> Scheduler:
    return Scheduler(EngineConfig(**{"max_batch": 2, "prefill_chunk": 8, **settings}), ())  # type: ignore[arg-type]


def submit(made: Scheduler, name: str, length: int, *, speculative: bool = True) -> None:
    made.submit(Request(name, (1,) * length, SamplingParams(4), speculative))


def test_prompts_share_the_rows_of_a_step_in_order_of_arrival() -> None:
    made = scheduler()
    submit(made, "a", 5)
    submit(made, "b", 9)
    made.admit()
    first, second = made.running
    assert made.prefill_chunks() == [(first, 5), (second, 3)]
    first.num_cached, second.num_cached = 5, 3
    assert made.prefill_chunks() == [(second, 6)]


def test_a_freed_slot_goes_to_the_next_in_the_queue() -> None:
    made = scheduler()
    for name in "abc":
        submit(made, name, 2)
    made.admit()
    assert [sequence.slot for sequence in made.running] == [0, 1]
    made.running[0].finish_reason = "stop"
    assert [sequence.request_id for sequence in made.release_finished()] == ["a"]
    made.admit()
    assert [(sequence.request_id, sequence.slot) for sequence in made.running] == [("b", 1), ("c", 0)]


def test_requests_decode_as_they_ask_and_in_slot_order() -> None:
    made = scheduler(max_batch=3)
    for name, speculative in (("a", True), ("b", False), ("c", True)):
        submit(made, name, 2, speculative=speculative)
    made.admit()
    assert made.decoding(speculative=True) == []
    for sequence in made.running:
        sequence.num_cached = 2
    made.running.reverse()
    assert [sequence.request_id for sequence in made.decoding(speculative=True)] == ["a", "c"]
    assert [sequence.request_id for sequence in made.decoding(speculative=False)] == ["b"]
