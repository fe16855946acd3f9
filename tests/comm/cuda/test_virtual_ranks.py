"""The kernels on a GPU, ranks in one process: sums, norms, gathers, graphs, late ranks, epochs that wrap."""

from collections.abc import Callable

import pytest
import torch

from fastverify.comm.accuracy import (
    add_exactly,
    is_within,
    norm_error_bound,
    norm_exactly,
    residual_error_bound,
    sum_error_bound,
)
from fastverify.errors import CommTimeoutError, ConfigError, ShapeError, UnsupportedError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU that torch sees"),
]
pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")

from fastverify.comm.cuda.call import Outcome  # noqa: E402
from fastverify.comm.cuda.launch import Algorithm, Launch, Protocol, candidate_launches  # noqa: E402
from fastverify.comm.cuda.rank import CudaRank  # noqa: E402
from fastverify.comm.cuda.virtual_ranks import VirtualRanks  # noqa: E402

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
FABRICS = ("push", "host")
SIZES = (1, 3, 8, 515, 4099, 28_672, 131_071)
SPIN_BOUND_CYCLES = 400_000_000
EPS = 1e-5


def make_inputs(num_ranks: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    """Terms of very different size, so that sums in the dtype itself would exceed the bound."""
    generator = torch.Generator("cuda").manual_seed(seed)
    return [
        (torch.randn(shape, generator=generator, device="cuda") * 4.0 ** (rank % 3)).to(dtype)
        for rank in range(num_ranks)
    ]


def open_ranks(world_size: int, fabric: str, **settings: int) -> VirtualRanks:
    return VirtualRanks(world_size, fabric, spin_bound_cycles=SPIN_BOUND_CYCLES, **settings)


def check_sums(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
    assert is_within(outputs[0], add_exactly(inputs), sum_error_bound(inputs, inputs[0].dtype))
    for output in outputs[1:]:
        assert torch.equal(output, outputs[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("world_size", [2, 4, 8])
@pytest.mark.parametrize("protocol", list(Protocol))
def test_sums_of_mixed_sizes(fabric: str, world_size: int, protocol: Protocol, dtype: torch.dtype) -> None:
    launch = Launch(protocol, 8, 256)
    with open_ranks(world_size, fabric, max_bytes=1 << 19) as virtual:
        virtual.check_fits(launch, dtype)
        for seed, size in enumerate([*SIZES, *reversed(SIZES)]):
            inputs = make_inputs(world_size, (size,), dtype, seed)
            outputs = [torch.full_like(x, float("nan")) for x in inputs]
            virtual.run(lambda rank: rank.all_reduce(inputs[rank.rank], outputs[rank.rank], launch))  # noqa: B023
            virtual.check()
            check_sums(inputs, outputs)


def add_in_order(inputs: list[torch.Tensor], algorithm: Algorithm) -> torch.Tensor:
    """The sum to the bit: rank order in float32, or the sums of the two islands added."""
    half = len(inputs) // 2
    groups = [inputs[:half], inputs[half:]] if algorithm is Algorithm.ISLANDS else [inputs]
    totals = []
    for group in groups:
        total = torch.zeros_like(group[0], dtype=torch.float32)
        for x in group:
            total = total + x.float()
        totals.append(total)
    return (totals[0] + totals[1] if len(totals) == 2 else totals[0]).to(inputs[0].dtype)


def check_bits(virtual: VirtualRanks, launch: Launch, size: int, dtype: torch.dtype, seed: int) -> None:
    inputs = make_inputs(len(virtual.ranks), (size,), dtype, seed)
    outputs = [torch.full_like(x, float("nan")) for x in inputs]
    virtual.run(lambda rank: rank.all_reduce(inputs[rank.rank], outputs[rank.rank], launch))
    virtual.check()
    expected = add_in_order(inputs, launch.algorithm)
    for output in outputs:
        assert torch.equal(output, expected), (launch, size, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
def test_sums_of_every_algorithm_to_the_bit(fabric: str, world_size: int, dtype: torch.dtype) -> None:
    """Parts that are whole, short or empty, in every order, on one workspace."""
    with open_ranks(world_size, fabric, max_bytes=1 << 19) as virtual:
        launches = [
            Launch(protocol, 6, 256, algorithm=algorithm)
            for protocol in Protocol
            for algorithm in virtual.layout.algorithms(protocol)
        ]
        for seed, size in enumerate([*SIZES, *reversed(SIZES)]):
            for launch in launches:
                virtual.check_fits(launch, dtype)
                check_bits(virtual, launch, size, dtype, seed)


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_every_candidate_that_fits_is_right(fabric: str, world_size: int) -> None:
    with open_ranks(world_size, fabric, max_bytes=1 << 21) as virtual:
        for num_bytes in (14_336, 172_032, 1 << 20):
            for launch in candidate_launches(fabric, world_size, num_bytes, fused=False):
                try:
                    virtual.check_fits(launch)
                except ConfigError:
                    continue
                check_bits(virtual, launch, num_bytes // 2, torch.bfloat16, num_bytes)


@pytest.mark.parametrize("fabric", FABRICS)
def test_messages_above_the_largest_go_in_pieces(fabric: str) -> None:
    with open_ranks(2, fabric, max_bytes=1 << 16) as virtual:
        for protocol in Protocol:
            check_bits(virtual, Launch(protocol, 8, 256), 100_001, torch.bfloat16, protocol)
        weight = make_inputs(1, (4096,), torch.bfloat16, 1)[0]
        inputs = make_inputs(2, (33, 4096), torch.bfloat16, 2)
        residuals = [torch.zeros_like(x) for x in inputs]
        virtual.run(lambda rank: rank.all_reduce_residual_rmsnorm(inputs[rank.rank], residuals[rank.rank], weight, EPS))
        virtual.check()
        assert is_within(
            inputs[0], norm_exactly(residuals[0], weight, EPS), norm_error_bound(residuals[0], weight, EPS)
        )
        assert torch.equal(inputs[0], inputs[1])


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_gathers_keep_every_bit(fabric: str, world_size: int) -> None:
    generator = torch.Generator("cuda").manual_seed(world_size)
    with open_ranks(world_size, fabric, max_bytes=1 << 18) as virtual:
        for dtype in (torch.uint8, torch.bfloat16, torch.int64):
            for shape in ((), (1,), (3, 5), (2, 20_001)):
                num_bytes = dtype.itemsize * torch.Size(shape).numel()
                shapes = (world_size, num_bytes)
                whole = torch.randint(0, 256, shapes, generator=generator, device="cuda", dtype=torch.uint8)
                whole[:, ::2] = 255  # what a sentinel would replace
                inputs = [row.clone().view(dtype).reshape(shape) for row in whole]
                outputs = [torch.zeros((world_size, *shape), dtype=dtype, device="cuda") for _ in inputs]
                virtual.run(lambda rank: rank.all_gather(inputs[rank.rank], outputs[rank.rank]))  # noqa: B023
                virtual.check()
                for output in outputs:
                    assert torch.equal(output.view(torch.uint8).flatten(), whole.flatten()), (dtype, shape)


@pytest.mark.parametrize("units", [2, 4])
@pytest.mark.parametrize("protocol", list(Protocol))
def test_several_units_in_flight(protocol: Protocol, units: int) -> None:
    launch = Launch(protocol, 3, 128, units=units)
    with open_ranks(2, "push") as virtual:
        inputs = make_inputs(2, (100_003,), torch.bfloat16, units)
        outputs = [torch.full_like(x, float("nan")) for x in inputs]
        virtual.run(lambda rank: rank.all_reduce(inputs[rank.rank], outputs[rank.rank], launch))
        virtual.check()
        check_sums(inputs, outputs)


@pytest.mark.parametrize("fabric", FABRICS)
def test_in_place_with_the_chosen_launch(fabric: str) -> None:
    with open_ranks(2, fabric) as virtual:
        for num_bytes in (4096, 57_344, 229_376, 1 << 20):
            inputs = make_inputs(2, (num_bytes // 2,), torch.bfloat16, num_bytes)
            outputs = [x.clone() for x in inputs]
            virtual.run(lambda rank: rank.all_reduce(outputs[rank.rank]))  # noqa: B023
            virtual.check()
            check_sums(inputs, outputs)


@pytest.mark.parametrize("value", [-0.0, float("nan"), float("inf")])
def test_bits_that_look_like_nothing(value: float) -> None:
    """The sentinel's own bits, minus zero and infinity arrive as what they are."""
    launch = Launch(Protocol.SENTINEL, 1, 32)
    inputs = [torch.full((64,), value, dtype=torch.float32, device="cuda") for _ in range(2)]
    inputs[0].view(torch.int32)[:8] = -1
    outputs = [torch.zeros_like(x) for x in inputs]
    with open_ranks(2, "push") as virtual:
        virtual.run(lambda rank: rank.all_reduce(inputs[rank.rank], outputs[rank.rank], launch))
        virtual.check()
    assert outputs[0][:8].isnan().all()
    assert torch.equal(outputs[0][8:].nan_to_num(7.0), (inputs[0] + inputs[1])[8:].nan_to_num(7.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize(("world_size", "num_rows", "hidden"), [(2, 1, 7168), (2, 16, 7168), (4, 5, 1024), (2, 70, 64)])
def test_fused_norm(fabric: str, world_size: int, num_rows: int, hidden: int, dtype: torch.dtype) -> None:
    weight = make_inputs(1, (hidden,), dtype, 99)[0]
    with open_ranks(world_size, fabric) as virtual:
        for seed in range(3):
            inputs = make_inputs(world_size, (num_rows, hidden), dtype, seed)
            residual = make_inputs(1, (num_rows, hidden), dtype, 50 + seed)[0]
            residuals = [residual.clone() for _ in inputs]
            outputs = [torch.full_like(x, float("nan")) for x in inputs]

            def work(rank: CudaRank) -> None:
                i = rank.rank
                rank.all_reduce_residual_rmsnorm(inputs[i], residuals[i], weight, EPS, outputs[i])  # noqa: B023

            virtual.run(work)
            virtual.check()
            exact = add_exactly([residual, *inputs])
            assert is_within(residuals[0], exact, residual_error_bound(inputs, residual))
            bound = norm_error_bound(residuals[0], weight, EPS)
            assert is_within(outputs[0], norm_exactly(residuals[0], weight, EPS), bound)
            for i in range(1, world_size):
                assert torch.equal(residuals[i], residuals[0])
                assert torch.equal(outputs[i], outputs[0])


@pytest.mark.parametrize("fabric", FABRICS)
def test_mixed_sizes_in_one_graph_replayed_with_changing_data(fabric: str) -> None:
    """Ten thousand replays; every replay takes other inputs and counts the elements that differ from their sum."""
    sizes, num_banks = (1031, 65_536, 8), 7
    banks = {size: make_inputs(2, (num_banks, size), torch.bfloat16, size) for size in sizes}
    sums = {size: (banks[size][0].float() + banks[size][1].float()).bfloat16() for size in sizes}
    index = [torch.zeros(1, dtype=torch.int64, device="cuda") for _ in range(2)]
    wrong = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in range(2)]

    def count_wrong(rank: CudaRank, all_reduce: Callable[[CudaRank, torch.Tensor], torch.Tensor]) -> None:
        i = rank.rank
        for size in sizes:
            x = banks[size][i].index_select(0, index[i])[0]
            wrong[i].add_((all_reduce(rank, x) != sums[size].index_select(0, index[i])[0]).sum())
        index[i].add_(1).remainder_(num_banks)

    def work(rank: CudaRank) -> None:
        count_wrong(rank, CudaRank.all_reduce)

    with open_ranks(2, fabric) as virtual:
        # torch loads its kernels on first use, which must not happen while a rank waits for another.
        virtual.run(lambda rank: count_wrong(rank, lambda _, x: x))
        torch.cuda.synchronize()
        assert all(count > 0 for count in wrong)
        for tensor in (*index, *wrong):
            tensor.zero_()
        virtual.run(work)
        virtual.check()
        graph = virtual.capture(work)
        for _ in range(10_000):
            graph.replay()
        virtual.check()
        torch.cuda.synchronize()
        assert [int(count) for count in wrong] == [0, 0]
        assert int(index[0]) == 10_001 % num_banks


@pytest.mark.parametrize("fabric", FABRICS)
def test_mixed_algorithms_in_one_graph_replayed_with_changing_data(fabric: str) -> None:
    """Four ranks; every call of the graph is of another algorithm, protocol and size."""
    num_ranks, num_banks = 4, 5
    with open_ranks(num_ranks, fabric) as virtual:
        launches = [
            Launch(protocol, 4, 128, algorithm=algorithm)
            for protocol in Protocol
            for algorithm in virtual.layout.algorithms(protocol)
        ]
        sizes = [(8, 1031, 4096, 9, 20_001, 64, 2050)[i % 7] for i in range(len(launches))]
        banks = [make_inputs(num_ranks, (num_banks, size), torch.bfloat16, i) for i, size in enumerate(sizes)]
        sums = [add_in_order(bank, launch.algorithm) for bank, launch in zip(banks, launches, strict=True)]
        index = [torch.zeros(1, dtype=torch.int64, device="cuda") for _ in range(num_ranks)]
        wrong = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in range(num_ranks)]

        def work(rank: CudaRank, calls: bool = True) -> None:
            i = rank.rank
            for bank, total, launch in zip(banks, sums, launches, strict=True):
                x = bank[i].index_select(0, index[i])[0]
                out = rank.all_reduce(x, launch=launch) if calls else x
                wrong[i].add_((out != total.index_select(0, index[i])[0]).sum())
            index[i].add_(1).remainder_(num_banks)

        # Kernels are loaded on first use, which must not happen while a rank waits for another.
        virtual.run(lambda rank: work(rank, calls=False))
        torch.cuda.synchronize()
        for launch, size in zip(launches, sizes, strict=True):
            check_bits(virtual, launch, size, torch.bfloat16, size)
        for tensor in (*index, *wrong):
            tensor.zero_()
        graph = virtual.capture(work)
        for _ in range(10_000):
            graph.replay()
        virtual.check()
        torch.cuda.synchronize()
        assert [int(count) for count in wrong] == [0] * num_ranks
        assert int(index[0]) == 10_000 % num_banks


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("protocol", list(Protocol))
def test_epochs_wrap_and_a_late_rank_is_waited_for(fabric: str, protocol: Protocol) -> None:
    launch = Launch(protocol, 4, 128)
    torch.cuda._sleep(1)
    with open_ranks(2, fabric) as virtual:
        for rank in virtual.ranks:
            rank.set_epoch(2**32 - 3)
        torch.cuda.synchronize()
        for seed in range(8):
            inputs = make_inputs(2, (20_000,), torch.float16, seed)
            outputs = [torch.full_like(x, float("nan")) for x in inputs]

            def work(rank: CudaRank) -> None:
                if rank.rank == seed % 2:  # noqa: B023
                    torch.cuda._sleep(500_000)
                rank.all_reduce(inputs[rank.rank], outputs[rank.rank], launch)  # noqa: B023

            virtual.run(work)
            virtual.check()
            check_sums(inputs, outputs)


@pytest.mark.parametrize("algorithm", list(Algorithm))
@pytest.mark.parametrize("fabric", FABRICS)
def test_a_late_rank_of_four_is_waited_for(fabric: str, algorithm: Algorithm) -> None:
    torch.cuda._sleep(1)
    with open_ranks(4, fabric) as virtual:
        protocols = [protocol for protocol in Protocol if algorithm in virtual.layout.algorithms(protocol)]
        for late, protocol in ((late, protocol) for protocol in protocols for late in range(4)):
            launch = Launch(protocol, 4, 128, algorithm=algorithm)
            inputs = make_inputs(4, (20_000,), torch.float16, late)
            outputs = [torch.full_like(x, float("nan")) for x in inputs]

            def work(rank: CudaRank) -> None:
                if rank.rank == late:  # noqa: B023
                    torch.cuda._sleep(500_000)
                rank.all_reduce(inputs[rank.rank], outputs[rank.rank], launch)  # noqa: B023

            virtual.run(work)
            virtual.check()
            expected = add_in_order(inputs, algorithm)
            assert all(torch.equal(output, expected) for output in outputs)


@pytest.mark.parametrize("algorithm", list(Algorithm))
@pytest.mark.parametrize("protocol", list(Protocol))
def test_a_rank_that_never_comes_is_named(protocol: Protocol, algorithm: Algorithm) -> None:
    x = torch.ones(4096, dtype=torch.bfloat16, device="cuda")
    with VirtualRanks(4, "push", spin_bound_cycles=20_000_000) as virtual:
        if algorithm not in virtual.layout.algorithms(protocol):
            return
        assert virtual.ranks[0].status() is None
        for rank in virtual.ranks[:2]:
            with torch.cuda.stream(rank.stream):
                rank.all_reduce(x.clone(), launch=Launch(protocol, 2, 128, algorithm=algorithm))
        with pytest.raises(CommTimeoutError, match=r"rank 0 waited 20000000 clock cycles for rank [23] in epoch 1 "):
            virtual.check()
        status = virtual.ranks[0].status()
        assert status is not None
        assert (status.kind, status.epoch) == (Outcome.LATE, 1)


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("protocol", list(Protocol))
def test_the_host_can_make_a_kernel_leave(protocol: Protocol, fabric: str) -> None:
    x = torch.ones(4096, dtype=torch.bfloat16, device="cuda")
    with VirtualRanks(2, fabric, spin_bound_cycles=0) as virtual:
        rank = virtual.ranks[0]
        with torch.cuda.stream(rank.stream):
            rank.all_reduce(x, launch=Launch(protocol, 2, 128))
        assert not rank.stream.query()
        rank.abort()
        with pytest.raises(CommTimeoutError, match="rank 0 was told to leave while it waited for rank 1 in epoch 1 "):
            rank.check()


def test_calls_that_cannot_be() -> None:
    with open_ranks(2, "push", max_bytes=4096) as virtual, torch.cuda.stream(virtual.ranks[0].stream):
        rank = virtual.ranks[0]
        x = torch.ones(4096, dtype=torch.bfloat16, device="cuda")
        with pytest.raises(ShapeError, match="at least 1 byte"):
            rank.all_reduce(x[:0])
        with pytest.raises(ShapeError, match="aligned to 16 bytes"):
            rank.all_reduce(x[1:100])
        with pytest.raises(UnsupportedError, match="got torch.int32"):
            rank.all_reduce(x[:100].int())
        with pytest.raises(ShapeError, match="must be alike"):
            rank.all_reduce(x[:100], x[:96])
        with pytest.raises(ShapeError, match="a row must have at most 4096 bytes here, got 8192"):
            rank.all_reduce_residual_rmsnorm(x[None], x[None].clone(), x.clone(), EPS)
        with pytest.raises(ShapeError, match="out must be"):
            rank.all_gather(x, x)
        with pytest.raises(ConfigError, match="can use ONE_SHOT, TWO_SHOT with LINES, got ISLANDS"):
            rank.all_reduce(x, launch=Launch(Protocol.LINES, 1, 32, algorithm=Algorithm.ISLANDS))
        with torch.cuda.stream(virtual.ranks[1].stream), pytest.raises(ConfigError, match="rank 0 works on stream"):
            rank.all_reduce(x[:64])
