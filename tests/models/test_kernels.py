"""The CPU kernels against float64 arithmetic, and the same bits for any number of rows and any instruction set."""

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional as F

from fastverify.model_config import ModelConfig, YarnRope
from fastverify.models import kernels
from fastverify.models.rope import Rope, rotate

_kernels = pytest.importorskip("fastverify.models._kernels")
SIMD = _kernels.list_simd()
pytestmark = pytest.mark.skipif(not SIMD, reason="this processor has no vector code")


@pytest.fixture(params=SIMD)
def simd(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("FASTVERIFY_SIMD", request.param)
    kernels.find_kernels.cache_clear()
    yield request.param
    kernels.find_kernels.cache_clear()


def random_weight(num_outputs: int, num_inputs: int, is_bfloat16: bool) -> torch.Tensor:
    weight = torch.randn(num_outputs, num_inputs)
    return weight.bfloat16().float() if is_bfloat16 else weight


def run(simd: str, weight: torch.Tensor, bias: torch.Tensor | None, x: torch.Tensor, gated: bool) -> torch.Tensor:
    bias_address = 0 if bias is None else bias.data_ptr()
    packed = _kernels.PackedLinear(simd, weight.data_ptr(), bias_address, *weight.shape, gated)
    out = torch.full((x.shape[0], weight.shape[0] // (2 if gated else 1)), torch.nan)
    packed.run(x.data_ptr(), x.shape[0], out.data_ptr())
    return out


@pytest.mark.parametrize("is_bfloat16", [True, False])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(1, 1), (64, 320), (65, 3), (200, 77), (127, 64)])
def test_product_is_within_the_bound_of_float32(
    num_outputs: int, num_inputs: int, has_bias: bool, is_bfloat16: bool, simd: str
) -> None:
    torch.manual_seed(num_outputs)
    weight, x = random_weight(num_outputs, num_inputs, is_bfloat16), torch.randn(9, num_inputs)
    bias = torch.randn(num_outputs) if has_bias else None
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    size = F.linear(x.double().abs(), weight.double().abs(), None if bias is None else bias.double().abs())
    # Every fused multiply-add rounds once.
    assert ((run(simd, weight, bias, x, False) - exact).abs() <= num_inputs * 2**-24 * size).all()


def test_storage_is_bfloat16_only_where_that_is_exact() -> None:
    weight = random_weight(8, 8, is_bfloat16=True)
    packed = _kernels.PackedLinear("auto", weight.data_ptr(), 0, 8, 8, False)
    weight[3, 5] = 1 / 3
    not_exact = _kernels.PackedLinear("auto", weight.data_ptr(), 0, 8, 8, False)
    assert (packed.is_bfloat16, not_exact.is_bfloat16) == (True, False)
    assert packed.num_bytes * 2 == not_exact.num_bytes == 64 * 8 * 4


@pytest.mark.parametrize("num_gates", [1, 31, 32, 100])
def test_gates(num_gates: int, simd: str) -> None:
    torch.manual_seed(num_gates)
    weight, x = random_weight(2 * num_gates, 16, is_bfloat16=True), torch.randn(5, 16)
    gate, up = (x.double() @ weight.double().T).chunk(2, -1)
    torch.testing.assert_close(run(simd, weight, None, x, True).double(), F.silu(gate) * up, rtol=1e-5, atol=1e-5)


def test_gates_far_from_zero_are_finite(simd: str) -> None:
    x = torch.tensor([[-1e4], [-100.0], [-88.0], [0.0], [88.0], [1e4]])
    gated = run(simd, torch.ones(2, 1), None, x, True)
    torch.testing.assert_close(gated, F.silu(x) * x, rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("is_bfloat16", [True, False])
@pytest.mark.parametrize("gated", [True, False])
def test_a_row_has_the_same_bits_in_every_call_and_set(gated: bool, is_bfloat16: bool) -> None:
    torch.manual_seed(0)
    weight, bias, x = random_weight(150, 65, is_bfloat16), torch.randn(150), torch.randn(300, 65)
    alone = torch.cat([run("auto", weight, bias, row[None], gated) for row in x])
    for simd in SIMD:
        for num_rows in (*range(1, 14), 300):
            assert torch.equal(run(simd, weight, bias, x[:num_rows], gated), alone[:num_rows]), (simd, num_rows)


@pytest.mark.parametrize("head_dim", [2, 8, 32, 80])
def test_rotation_of_some_heads(head_dim: int, simd: str) -> None:
    torch.manual_seed(head_dim)
    heads, angles = torch.randn(4, 5, head_dim), torch.randn(2, 4, 1, head_dim).unbind(0)
    expected = rotate(heads, 3, angles)
    with torch.no_grad():
        torch.testing.assert_close(rotate(heads, 3, angles), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("scaling", [None, YarnRope(4.0, 2048, 32.0, 1.0, True, None, None, None)])
def test_angles(scaling: YarnRope | None, simd: str) -> None:
    config = ModelConfig("LlamaForCausalLM", 64, 1, 2, 2, 32, 64, 100, rope_scaling=scaling)
    rope, positions = Rope(config), torch.tensor([0, 1, 511, 9000])
    expected = rope.forward(positions, torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(rope.forward(positions, torch.float32), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_columns", [1, 7, 16, 100])
@torch.no_grad()
def test_arg_max_takes_the_lowest_of_equals(num_columns: int, simd: str) -> None:
    torch.manual_seed(num_columns)
    logits = torch.randint(-3, 3, (50, num_columns)).float()
    logits[0] = -torch.inf
    native = kernels.kernels_for(logits)
    assert native is not None
    best_T2 = kernels.arg_max(native, logits, first_id=1000)
    values, ids = logits.max(-1)
    lowest = (logits == values[:, None]).int().argmax(-1)
    assert torch.equal(best_T2, torch.stack((values, lowest + 1000.0), -1))


@torch.no_grad()
def test_best_of_the_ranks_is_the_first_of_equals(simd: str) -> None:
    best_RT2 = torch.tensor([[[1.0, 3.0], [2.0, 4.0], [-torch.inf, 0.0]], [[1.0, 9.0], [5.0, 8.0], [-7.0, 7.0]]])
    native = kernels.kernels_for(best_RT2)
    assert native is not None
    assert kernels.choose_best(native, best_RT2).tolist() == [3, 8, 7]


@pytest.mark.parametrize("size", [1, 33, 320])
@torch.inference_mode()
def test_norm(size: int, simd: str) -> None:
    torch.manual_seed(size)
    x, weight = torch.randn(3, size), torch.randn(size)
    native = kernels.kernels_for(x)
    assert native is not None
    expected = F.rms_norm(x, (size,), weight, 1e-5)
    torch.testing.assert_close(kernels.rms_norm(native, x, weight, 1e-5), expected, rtol=1e-5, atol=1e-6)


def test_who_may_use_them(simd: str) -> None:
    x = torch.zeros(1)
    assert kernels.kernels_for(x) is None, "gradients may be wanted"
    with torch.inference_mode():
        assert kernels.kernels_for(x).simd == simd
        assert kernels.kernels_for(x.double()) is None
    assert kernels.describe_kernels(torch.float32) == f"native-{simd}"
    assert kernels.describe_kernels(torch.bfloat16) == "torch"


def test_plain_means_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTVERIFY_SIMD", "plain")
    kernels.find_kernels.cache_clear()
    assert kernels.find_kernels() is None
    assert kernels.describe_kernels(torch.float32) == "torch"
    kernels.find_kernels.cache_clear()
