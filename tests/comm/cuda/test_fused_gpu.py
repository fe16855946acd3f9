"""The fused kernel on a GPU: every shape, a bias, norms in 8 bits, and graphs that are replayed with changing data."""

import pytest
import torch

from fastverify.comm.accuracy import is_within, norm_error_bound, norm_exactly

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU that torch sees"),
]
pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")

from fastverify.comm.cuda.launch import Launch, Protocol, fused_launch  # noqa: E402
from fastverify.comm.cuda.rank import CudaRank  # noqa: E402
from fastverify.comm.cuda.virtual_ranks import VirtualRanks  # noqa: E402

EPS = 1e-5
SPIN_BOUND_CYCLES = 400_000_000
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def draw(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


def add_in_order(terms: list[torch.Tensor]) -> torch.Tensor:
    """In float32, rounded once: what every rank must hold, bit by bit."""
    total = torch.zeros(terms[-1].shape, device="cuda")
    for term in terms:
        total += term.float()
    return total.to(terms[-1].dtype)


def check_rows(
    virtual: VirtualRanks,
    num_rows: int,
    hidden: int,
    dtype: torch.dtype,
    launch: Launch | None = None,
    *,
    has_bias: bool = False,
) -> None:
    world_size = len(virtual.ranks)
    inputs = [draw((num_rows, hidden), dtype, rank) for rank in range(world_size)]
    residual, weight = draw((num_rows, hidden), dtype, 90), draw((hidden,), dtype, 91)
    bias = draw((hidden,), dtype, 92) if has_bias else None
    residuals = [residual.clone() for _ in inputs]
    outputs = [torch.full_like(x, float("nan")) for x in inputs]

    def work(rank: CudaRank) -> None:
        i = rank.rank
        rank.all_reduce_residual_rmsnorm(inputs[i], residuals[i], weight, EPS, outputs[i], launch, bias)

    virtual.run(work)
    virtual.check()
    expected = add_in_order([*inputs, *([] if bias is None else [bias]), residual])
    norm, bound = norm_exactly(expected, weight, EPS), norm_error_bound(expected, weight, EPS)
    for new_residual, output in zip(residuals, outputs, strict=True):
        assert torch.equal(new_residual, expected)
        assert torch.equal(output, outputs[0])
    assert is_within(outputs[0], norm, bound)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fabric", ["push", "host"])
@pytest.mark.parametrize("world_size", [2, 4])
def test_bias(world_size: int, fabric: str, dtype: torch.dtype) -> None:
    with VirtualRanks(world_size, fabric, spin_bound_cycles=SPIN_BOUND_CYCLES) as virtual:
        for num_rows, hidden in ((1, 7168), (16, 1024), (3, 4096), (70, 64)):
            check_rows(virtual, num_rows, hidden, dtype, has_bias=True)


@pytest.mark.parametrize("protocol", [Protocol.LINES, Protocol.SENTINEL])
@pytest.mark.parametrize("units", [1, 2, 4])
@pytest.mark.parametrize("cluster", [1, 2, 4, 8])
def test_every_shape(cluster: int, units: int, protocol: Protocol) -> None:
    """Fewer clusters than rows, as many, and more."""
    if cluster > 1 and torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("clusters need SM90")
    with VirtualRanks(2, "push", spin_bound_cycles=SPIN_BOUND_CYCLES) as virtual:
        for num_rows, hidden in ((1, 7168), (5, 7168), (16, 2048), (3, 520)):
            for max_blocks in (cluster, 16 * cluster):
                launch = fused_launch(
                    *(protocol, num_rows, hidden * 2), cluster=cluster, max_blocks=max_blocks, min_units=units
                )
                check_rows(virtual, num_rows, hidden, torch.bfloat16, launch)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fabric", ["push", "host"])
def test_norms_in_eight_bits(fabric: str, dtype: torch.dtype) -> None:
    """The last row is all zeros: its scale is 0."""
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("8-bit floats need SM89")
    with VirtualRanks(2, fabric, spin_bound_cycles=SPIN_BOUND_CYCLES) as virtual:
        # Memory for the outputs is taken from CUDA before a rank waits.
        virtual.run(lambda rank: torch.empty(1, device="cuda"))
        for num_rows, hidden in ((1, 7168), (5, 1024), (70, 64)):
            inputs = [draw((num_rows, hidden), dtype, rank) for rank in range(2)]
            residual, weight = draw((num_rows, hidden), dtype, 90), draw((hidden,), dtype, 91)
            for x in (*inputs, residual):
                x[-1] = 0
            residuals, outputs = [residual.clone() for _ in inputs], {}

            def work(rank: CudaRank) -> None:
                i = rank.rank
                outputs[i] = rank.all_reduce_residual_rmsnorm_fp8(inputs[i], residuals[i], weight, EPS)  # noqa: B023

            virtual.run(work)
            virtual.check()
            expected = add_in_order([*inputs, residual])
            norm, bound = norm_exactly(expected, weight, EPS), norm_error_bound(expected, weight, EPS)
            quantised, scales = outputs[0]
            # Half a step of three bits of fraction, or of 2^-9 for the smallest numbers.
            half_step = norm.abs() * 2.0**-4 * 1.001 + scales[:, None] * 2.0**-10
            assert torch.equal(residuals[0], expected)
            assert is_within(scales, norm.abs().amax(-1) / 448, bound.amax(-1) / 448 + 2e-7 * scales)
            assert is_within(quantised.double() * scales[:, None], norm, bound + half_step)
            assert torch.equal(quantised.view(torch.uint8), outputs[1][0].view(torch.uint8))
            assert torch.equal(scales, outputs[1][1])
            assert scales[-1] == 0
            assert not quantised[-1].float().any()


@pytest.mark.parametrize("fabric", ["push", "host"])
def test_graph_replayed_with_changing_data(fabric: str) -> None:
    """Three thousand replays of three calls; each counts the elements of the new residual that are not the sum."""
    shapes, num_banks, num_replays = ((1, 7168), (16, 1024), (4, 7168)), 5, 3000
    banks = {shape: [draw((num_banks, *shape), torch.bfloat16, 7 * rank) for rank in range(2)] for shape in shapes}
    start = {shape: draw(shape, torch.bfloat16, 50) for shape in shapes}
    sums = {shape: add_in_order([*banks[shape], start[shape].expand(num_banks, *shape)]) for shape in shapes}
    weights = {shape: torch.ones(shape[1], dtype=torch.bfloat16, device="cuda") for shape in shapes}
    index = [torch.zeros(1, dtype=torch.int64, device="cuda") for _ in range(2)]
    wrong = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in range(2)]

    def count_wrong(rank: CudaRank, is_dry: bool) -> None:
        i = rank.rank
        for shape in shapes:
            x, residual = banks[shape][i].index_select(0, index[i])[0], start[shape].clone()
            if not is_dry:
                rank.all_reduce_residual_rmsnorm(x, residual, weights[shape], EPS)
            wrong[i].add_((residual != sums[shape].index_select(0, index[i])[0]).sum())
        index[i].add_(1).remainder_(num_banks)

    with VirtualRanks(2, fabric, spin_bound_cycles=SPIN_BOUND_CYCLES) as virtual:
        # torch loads its kernels on first use, which must not happen while a rank waits for another.
        virtual.run(lambda rank: count_wrong(rank, is_dry=True))
        torch.cuda.synchronize()
        assert all(count > 0 for count in wrong)
        for tensor in (*index, *wrong):
            tensor.zero_()
        virtual.run(lambda rank: count_wrong(rank, is_dry=False))
        virtual.check()
        graph = virtual.capture(lambda rank: count_wrong(rank, is_dry=False))
        for _ in range(num_replays):
            graph.replay()
        virtual.check()
        torch.cuda.synchronize()
        assert [int(count) for count in wrong] == [0, 0]
        assert int(index[0]) == (num_replays + 1) % num_banks
