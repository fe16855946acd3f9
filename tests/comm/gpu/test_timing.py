import pytest
import torch

from fastverify.comm.gpu.timing import (
    capture,
    chain_factor,
    num_safe_calls,
    slowest_rank,
    summarise,
    time_replays,
    timing_stream,
)
from fastverify.errors import ConfigError

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
def test_a_safe_chain_is_finite_and_as_long_as_it_may_be(dtype: torch.dtype, world_size: int) -> None:
    num_calls = num_safe_calls(dtype, world_size)
    x = torch.tensor([8.0, -8.0]).to(dtype)
    for _ in range(num_calls):
        x = (x.float() * world_size).to(dtype)  # what an all-reduce of equal inputs does
    assert x.isfinite().all()
    assert (x.float() * world_size).to(dtype).isinf().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_the_chain_factor_is_exact_for_powers_of_two(dtype: torch.dtype, world_size: int) -> None:
    inputs = [torch.randn(1000).to(dtype) for _ in range(world_size)]
    num_calls = num_safe_calls(dtype, world_size)
    first = x = torch.stack(inputs).float().sum(0).to(dtype)
    for _ in range(num_calls - 1):
        x = (x.float() * world_size).to(dtype)
    assert torch.equal(x, (first.float() * chain_factor(num_calls, world_size)).to(dtype))


def test_samples_in_short_leave_nothing_out() -> None:
    assert slowest_rank([[1.0, 5.0, 2.0], [3.0, 4.0, 2.5]]) == [3.0, 5.0, 2.5]
    calm = summarise([2.0, 2.1, 2.2, 2.1, 2.0])
    assert (calm.median_us, calm.remark) == (2.1, "")
    disturbed = summarise([2.0, 2.1, 2.2, 350.0, 2.0])
    assert disturbed.median_us == 2.1
    assert "1 of 5 samples more than twice the median, the worst 350.0" in disturbed.remark
    assert "IQR" in summarise([2.0, 2.0, 2.0, 3.0, 3.0, 3.0]).remark, "two levels"
    assert summarise([2.0] * 99 + [350.0]).remark == "", "one in a hundred is no news"


def test_numbers_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="float16"):
        num_safe_calls(torch.float16, 8, largest_input=60_000)
    with pytest.raises(ConfigError, match="got 0"):
        capture(lambda: None, 0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_graph_holds_the_calls_and_its_time_is_per_call() -> None:
    device = torch.device("cuda", 0)
    with torch.cuda.stream(timing_stream(device)):
        x = torch.zeros(1 << 20, device=device)
        x += 1
        graph = capture(lambda: x.add_(1), 10)
        assert x[0] == 1, "a capture runs nothing"
        samples_us = time_replays(graph, 10, 3, prepare=x.zero_)
        assert x[0] == 10, "the chain of the last replay starts from what `prepare` wrote"
    assert len(samples_us) == 3
    assert all(0.3 < sample_us < 1000 for sample_us in samples_us)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_call_that_raises_ends_the_capture_and_shows_its_own_error() -> None:
    def fail() -> None:
        raise ConfigError("not this one")

    with pytest.raises(ConfigError, match="not this one"):
        capture(fail, 2)
    x = torch.ones(4, device="cuda")
    capture(lambda: x.add_(1), 2).replay()
    torch.cuda.synchronize()
    assert x[0] == 3
