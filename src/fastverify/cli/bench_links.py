"""`fastverify bench links`: what every link between GPUs, and between GPUs and host memory, can do."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fastverify.cli.console import err, out, print_json, print_text
from fastverify.cli.exit_codes import ExitCode
from fastverify.errors import EnvironmentMissingError
from fastverify.hardware import read_machine
from fastverify.units import format_bytes

if TYPE_CHECKING:
    from fastverify.comm.cuda.link_report import LinkReport, LinkRow, PcieState, Quantity
    from fastverify.comm.latency_model import Prediction

SCHEMA_VERSION = 1
# 1, 4 and 12 rows of Kimi-K2.5 (hidden size 7168, bf16) and 1 MB.
PREDICTED_SIZES = (14_336, 57_344, 172_032, 1 << 20)


def bench_links(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Flags, stores and loads of kernels over peer and host memory; P2P, NVLink, PCIe under load, write collapse."""
    try:
        from fastverify.comm.cuda.link_report import judge_collapse
        from fastverify.comm.cuda.links import measure_links
    except ImportError as error:
        raise EnvironmentMissingError(
            f"`fastverify bench` needs the package {error.name}. Install fastverify[torch], which brings it."
        ) from error
    with err.status("opening the GPUs") as status:
        report = measure_links(lambda text: status.update(f"measuring: {text}"))
    if as_json:
        print_json(to_document(report))
    else:
        print_report(report)
    if judge_collapse(report).collapsed:
        raise typer.Exit(ExitCode.FINDING)


def to_document(report: LinkReport) -> dict[str, object]:
    """What `--json` prints; the names are stable within a schema version."""
    return {
        "schema_version": SCHEMA_VERSION,
        "command": " ".join(["fastverify", *sys.argv[1:]]),
        "machine": read_machine().to_dict(),
        **report.to_dict(),
        "predictions": [
            {"backend": p.scheme.value, "protocol": p.protocol.name.lower(), "num_bytes": p.num_bytes, "us": p.us}
            for p in _predict(report)
        ],
    }


def _predict(report: LinkReport) -> list[Prediction]:
    """What our all-reduces of all these GPUs should take; a model over the measured links."""
    from fastverify.comm.latency_model import predict_all
    from fastverify.comm.link_facts import facts_from_report

    num_gpus = len(report.gpus)
    return predict_all(num_gpus, PREDICTED_SIZES, facts_from_report(report)) if num_gpus > 1 else []


def print_report(report: LinkReport) -> None:
    """Tables from what is installed to what was measured; verdicts and reasons last."""
    from fastverify.comm.cuda.link_report import Pattern, Quantity, find_hints, judge_collapse

    _print_gpus(report)
    if report.pairs:
        _print_access(report)
        for quantity in Quantity:
            _print_matrix(report, quantity, Pattern.ALONE)
        for quantity in (Quantity.STORE, Quantity.LOAD):
            _print_matrix(report, quantity, Pattern.BOTH_WAYS)
    _print_others(report)
    _print_predictions(_predict(report))
    print_text(f"concurrent writes: {judge_collapse(report).text}")
    for hint in find_hints(report):
        print_text(f"hint: {hint}")
    for reason in dict.fromkeys(row.reason for row in report.rows if row.reason):
        print_text(f"not measured: {reason}")


def _print_gpus(report: LinkReport) -> None:
    title = f"{len(report.gpus)} GPUs, CUDA {report.cuda_version}, {report.num_host_nodes} NUMA nodes"
    gpus = Table("GPU", "name", "bus", "root port", "NUMA", title=title, title_justify="left")
    links = Table(
        *("GPU", "PCIe idle", "under load", "at most", "GB/s", "for data", "NVLinks", "GB/s"),
        title="what the links carry in one direction",
        title_justify="left",
    )
    for gpu in report.gpus:
        node = "?" if gpu.numa_node is None else str(gpu.numa_node)
        gpus.add_row(str(gpu.index), gpu.name, gpu.bus_address, gpu.root_port.rpartition("/")[2] or "?", node)
        busy = gpu.pcie_busy
        links.add_row(
            str(gpu.index),
            *(_format_pcie(state) for state in (gpu.pcie_idle, gpu.pcie_busy, gpu.pcie_max)),
            *((f"{busy.bound_gb_per_s:.0f}", f"{busy.practical_gb_per_s:.0f}") if busy else ("?", "?")),
            *(str(gpu.num_nvlinks), f"{gpu.nvlink_gb_per_s:.0f}"),
        )
    out.print(gpus)
    out.print(links)


def _format_pcie(state: PcieState | None) -> str:
    return f"Gen{state.generation} x{state.width}" if state else "?"


def _print_access(report: LinkReport) -> None:
    num_gpus = len(report.gpus)
    cells = [["-"] * num_gpus for _ in range(num_gpus)]
    for pair in report.pairs:
        atomics = "atomics" if pair.native_atomics else "no atomics"
        cells[pair.source][pair.target] = f"rank {pair.performance_rank}, {atomics}" if pair.can_access else "no"
    _print_square("peer access by the driver: from row to column", cells)


def _print_matrix(report: LinkReport, quantity: Quantity, pattern: str) -> None:
    from fastverify.comm.cuda.link_report import to_matrix

    rows = [row for row in report.rows if row.quantity == quantity and row.pattern == pattern]
    digits = 2 if quantity.unit == "us" else 1
    title = f"{quantity.value} to a peer, {pattern}, {quantity.unit}"
    _print_square(title, to_matrix(rows, len(report.gpus), digits))


def _print_square(title: str, cells: list[list[str]]) -> None:
    table = Table("", *(f"GPU {index}" for index in range(len(cells))), title=title, title_justify="left")
    for index, row in enumerate(cells):
        table.add_row(f"GPU {index}", *row)
    out.print(table)


def _print_others(report: LinkReport) -> None:
    table = Table("from", "to", "what", "while", "value", title="own memory, host memory, all at once")
    for row in report.rows:
        if not row.target.startswith("gpu "):
            source = "all GPUs" if row.source < 0 else f"GPU {row.source}"
            table.add_row(source, row.target, row.quantity.value, row.pattern.value, _format_value(row))
    out.print(table)


def _print_predictions(predictions: list[Prediction]) -> None:
    if not predictions:
        return
    title = f"all-reduce of {predictions[0].world_size} ranks on these links, us, by a model (Lines, Sentinel, Flags)"
    table = Table("", *(format_bytes(size) for size in PREDICTED_SIZES), title=title, title_justify="left")
    for scheme in dict.fromkeys(p.scheme for p in predictions):
        row = [p for p in predictions if p.scheme is scheme]
        table.add_row(scheme.value, *(f"{p.us:.1f} {p.protocol.name[0]}" for p in row))
    out.print(table)


def _format_value(row: LinkRow) -> str:
    if row.value is None:
        return "not measured"
    return f"{row.value:.2f} us" if row.quantity.unit == "us" else f"{row.value:.1f} GB/s"
