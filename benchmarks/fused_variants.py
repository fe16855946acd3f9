"""Variants of the fused kernel for bench_fused_stages.py: its sources with a stage left out or done otherwise.

A variant is a list of replacements of source text, so that the product holds no switches for experiments. Each text
must be there exactly once; tests/comm/cuda/test_fused_variants.py compiles them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from unittest.mock import patch

from fastverify.comm.cuda import compile as compiler
from fastverify.comm.cuda.compile import KernelSpec

NUM_STAMPS = 8
STAMP_NAMES = ("start", "launched", "sent", "retired", "arrived", "offered", "total", "stored")


@dataclass(frozen=True)
class Edit:
    """Replace `old` by `new` in a source file."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Variant:
    """`is_right`: it computes what the product's kernel does. `exact_threads`: the compiler knows the block's size."""

    name: str
    edits: tuple[Edit, ...] = ()
    is_right: bool = True
    exact_threads: bool = False

    def compile(self, spec: KernelSpec, architecture: str) -> bytes:
        """Machine code of the edited sources."""
        with patch.object(compiler, "read_source", self.reader()):
            return compiler.compile_cubin(spec, architecture)

    def reader(self) -> Callable[[str], str]:
        """Reads a source with this variant's edits. Raises ValueError where the source has moved on."""
        original = compiler.read_source

        def read(name: str) -> str:
            text = original(name)
            for edit in self.edits:
                if edit.file == name:
                    if text.count(edit.old) != 1:
                        raise ValueError(f"{edit.old!r} must be once in {name}, it is {text.count(edit.old)} times")
                    text = text.replace(edit.old, edit.new)
            return text

        return read


def _fused(old: str, new: str) -> Edit:
    return Edit("fused.cuh", old, new)


def _total(old: str, new: str) -> Edit:
    return Edit("row_total.cuh", old, new)


# Only what is measured is compiled.
LESS = (
    Edit("fused.cu", "FV_KERNEL(lines, LineProtocol, Inboxes)\n", ""),
    Edit("fused.cu", "FV_KERNEL(outbox_lines, LineProtocol, Outboxes)\n", ""),
)
_OFFER = "row_total.offer<Sum>(add_to_residual(call, span, sums, units));"
_SCALE = "const float scale = rsqrtf(row_total.total<Sum>() * mean_factor + call.eps);"
_NORM = "normed[k] = normalise(units.residual[k], scale, weight[k]);"
_STORE_RESIDUAL = "    store_whole_units(call.residual, span, units.residual);\n"
_READ_TURN = "  Turn turn = read_turn(call);\n"
_LOAD = "  await_launch_before();\n  units.load(call, span, column);\n"
_SEND = "    send<Protocol, Boxes>(call, turn, span, units.own);\n"
_ALLOW = "      allow_next_launch();  // its blocks would have delayed the sends\n"
_RETIRE = (
    "    if (is_first_row) {\n" + _ALLOW + "      retire_epoch(call, turn);\n      row_total.meet();\n    }\n"
    "    is_first_row = false;\n"
)
_SPOTS = "    Spot spots[UNITS];\n    find_spots(channel, span, 0, spots);\n"
_RECEIVE = "    add_up(channel, turn, span, spots, units.own, sums);\n"
_GIVE_BACK = "    give_back_all(channel, span, spots);\n"
_FINISH = "    Finish::finish(call, span, row, row_total, normed);\n"
_DEPENDENTS = "  allow_next_launch();\n"
_KEEP_SCALE = "normed[k] = units.residual[k], normed[k].words[0] ^= __float_as_uint(scale);"
_LANE_READS = "float value = lane < num_parts ? memory.parts[set][lane] : 0.0f;"
_REST_READS = (
    "    if (CLUSTER > 1) {\n#pragma unroll 1\n"
    "      for (u32 i = lane + WARP; i < num_parts; i += WARP) value = Kind::combine(value, memory.parts[set][i]);\n"
    "    }\n    return combine_over_warp<Kind>(value);"
)
_ALL_READ = (
    "float even = 0.0f, odd = 0.0f;\n#pragma unroll 4\n    for (u32 i = 0; i + 1 < num_parts; i += 2) {\n"
    "      const float2 pair = *reinterpret_cast<const float2*>(&memory.parts[set][i]);\n"
    "      even = Kind::combine(even, pair.x), odd = Kind::combine(odd, pair.y);\n    }\n"
    "    if (num_parts % 2 != 0) even = Kind::combine(even, memory.parts[set][num_parts - 1]);"
)
_NO_TOTAL = (
    _fused(_OFFER, "const float own_squares = add_to_residual(call, span, sums, units);"),
    _fused(_SCALE, "const float scale = rsqrtf(own_squares * mean_factor + call.eps);"),
)
_NO_NORM = (_fused(_NORM, _KEEP_SCALE),)
_NO_ADDENDS = (
    _fused("residual[k] = load_whole_unit<WORDS>(call.residual, unit);", "residual[k] = own[k];"),
    _fused("weight[k] = load_whole_unit<WORDS>(call.weight, column + k * span.stride);", "weight[k] = units.own[k];"),
)
_NO_RESIDUAL_STORE = (_fused(_STORE_RESIDUAL, ""),)
_NO_PUSH = (_fused(_ALLOW, ""),)

VARIANTS = (
    Variant("as it is"),
    # Left out: what the stage costs.
    Variant("no total over the row", _NO_TOTAL, is_right=False),
    Variant("no norm", _NO_NORM, is_right=False),
    Variant("no residual, no weight", _NO_ADDENDS, is_right=False),
    Variant("residual not stored", _NO_RESIDUAL_STORE, is_right=False),
    Variant("none of these", (*_NO_TOTAL, *_NO_NORM, *_NO_ADDENDS, *_NO_RESIDUAL_STORE), is_right=False),
    # Done otherwise: what a choice is worth.
    Variant(
        "epoch read first",
        (_fused(_READ_TURN, ""), _fused(_LOAD, "  await_launch_before();\n" + _READ_TURN + _LOAD.split("\n", 1)[1])),
    ),
    Variant("retired before the send", (_fused(_SEND + _SPOTS + _RETIRE, _SPOTS + _RETIRE + _SEND),)),
    Variant(
        "residual stored after the total", (_fused(_STORE_RESIDUAL, ""), _fused(_FINISH, _STORE_RESIDUAL + _FINISH))
    ),
    Variant(
        "given back while the total is on its way", (_fused(_GIVE_BACK, ""), _fused(_OFFER, _OFFER + "\n" + _GIVE_BACK))
    ),
    Variant(
        "bytes awaited within the block only",
        (Edit("ptx.cuh", "try_wait.parity.acquire.cluster.shared", "try_wait.parity.shared"),),
    ),
    Variant("next launch allowed at once", (*_NO_PUSH, _fused(_LOAD, _DEPENDENTS + _LOAD))),
    Variant("next launch allowed after the sum", (*_NO_PUSH, _fused(_RECEIVE, _RECEIVE + "  " + _DEPENDENTS))),
    Variant("next launch not allowed early", _NO_PUSH),
    Variant(
        "barrier instead of mailboxes",
        (
            Edit(
                "ptx.cuh",
                "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];",
                "st.shared::cluster.f32 [%0], %1;",
            ),
            _total(
                "if (threadIdx.x == 0) expect_bytes(&memory.mailboxes[set], CLUSTER * num_warps * sizeof(float));", ""
            ),
            _total("await_bytes(&memory.mailboxes[set], round / 2 % 2);", "cluster_arrive();\n    cluster_wait();"),
        ),
    ),
    Variant(
        "all parts read by all threads",
        (_total(_LANE_READS, _ALL_READ), _total(_REST_READS, "    return Kind::combine(even, odd);")),
    ),
    Variant(
        "loads known to be global",
        (
            _fused(
                "const uint4 value = *reinterpret_cast<const uint4*>(base + index * 16);",
                "const uint4* place = reinterpret_cast<const uint4*>(base + index * 16);\n"
                "    __builtin_assume(__isGlobal(place));\n    const uint4 value = *place;",
            ),
        ),
    ),
    Variant("exact number of threads", exact_threads=True),
)


def _stamp(number: int) -> str:
    return f'    asm volatile("mov.u64 %0, %clock64;" : "=l"(stamps[{number}]) :: "memory");\n'


# Clock cycles of the first thread of each block 0, written to Call.scale_out, which this kernel does not use otherwise.
STAMPS = Variant(
    "stamps",
    (
        _fused("  row_total.open();\n", f"  u64 stamps[{NUM_STAMPS}];\n{_stamp(0)}  row_total.open();\n"),
        _fused(_LOAD, "  await_launch_before();\n" + _stamp(1) + _LOAD.split("\n", 1)[1]),
        _fused(_SEND + _SPOTS + _RETIRE, _SEND + _stamp(2) + _SPOTS + _RETIRE + _stamp(3)),
        _fused(_RECEIVE, _RECEIVE + _stamp(4)),
        _fused(_OFFER + "\n", _OFFER + "\n" + _stamp(5)),
        _fused(_SCALE + "\n", _SCALE + "\n" + _stamp(6)),
        _fused(
            _FINISH,
            _FINISH
            + _stamp(7)
            + "    if (blockIdx.x == 0 && threadIdx.x == 0) {\n"
            + f"      for (int i = 0; i < {NUM_STAMPS}; ++i) reinterpret_cast<u64*>(call.scale_out)[i] = stamps[i];\n"
            + "    }\n",
        ),
    ),
)


def compile_variant(variant: Variant, spec: KernelSpec, architecture: str) -> bytes:
    """Machine code with the sentinel kernel only."""
    return Variant(variant.name, (*LESS, *variant.edits)).compile(spec, architecture)
