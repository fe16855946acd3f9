"""Link reports of imagined machines, for tests."""

from fastverify.comm.cuda.link_report import GpuLinks, LinkReport, LinkRow, PairAccess, Pattern, PcieState, Quantity

GEN5 = PcieState(5, 16)


def gpu(index: int, root_port: str, *, num_nvlinks: int = 0, busy: PcieState | None = GEN5) -> GpuLinks:
    return GpuLinks(
        index=index,
        name="some GPU",
        bus_address=f"0000:{index:02x}:00.0",
        numa_node=None,
        root_port=root_port,
        host_native_atomics=False,
        pcie_idle=PcieState(1, 16),
        pcie_busy=busy,
        pcie_max=GEN5,
        num_nvlinks=num_nvlinks,
        nvlink_gb_per_s=26.5 * num_nvlinks,
    )


def peer_row(quantity: Quantity, source: int, target: int, value: float | None, reason: str = "") -> LinkRow:
    return LinkRow(quantity, source, f"gpu {target}", Pattern.ALONE, value, reason)


def all_row(quantity: Quantity, target: str, value: float | None, reason: str = "") -> LinkRow:
    return LinkRow(quantity, -1, target, Pattern.ALL_AT_ONCE, value, reason)


def report(gpus: list[GpuLinks], rows: list[LinkRow], *, native_atomics: bool = False) -> LinkReport:
    pairs = [PairAccess(a.index, b.index, True, 0, native_atomics) for a in gpus for b in gpus if a.index != b.index]
    return LinkReport(tuple(gpus), tuple(pairs), tuple(rows), num_host_nodes=1, cuda_version="13.0")


def two_switches(crossing_gb_per_s: float | None, *, num_nvlinks: int = 0, reason: str = "") -> LinkReport:
    """Four GPUs, two behind each switch, 50 GB/s alone."""
    gpus = [gpu(index, "port a" if index < 2 else "port b", num_nvlinks=num_nvlinks) for index in range(4)]
    rows = [peer_row(Quantity.STORE, 0, 1, 50.0), peer_row(Quantity.STORE, 0, 2, 50.0)]
    rows += [peer_row(Quantity.FLAG, 0, 1, 0.7), peer_row(Quantity.FLAG, 2, 3, 0.7)]
    rows += [peer_row(Quantity.FLAG, a, b, 1.1) for a in (0, 1) for b in (2, 3)]
    rows += [all_row(Quantity.STORE, "all gpus", 140.0)]
    rows += [all_row(Quantity.STORE, "gpus behind other ports", crossing_gb_per_s, reason)]
    rows += [all_row(Quantity.STORE, "host node 0", 200.0), all_row(Quantity.LOAD, "host node 0", 160.0)]
    rows += [LinkRow(Quantity.STORE, 0, "host node 0", Pattern.ALONE, 55.0)]
    rows += [LinkRow(Quantity.FLAG, 0, "host node 0 to gpu 1", Pattern.ALONE, 2.0)]
    rows += [LinkRow(Quantity.RELEASE_FLAG, 0, "host node 0 to gpu 1", Pattern.ALONE, 2.5)]
    return report(gpus, rows)
