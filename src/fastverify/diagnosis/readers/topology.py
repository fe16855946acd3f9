"""`nvidia-smi topo -m` and `topo -p2p r|w|a`: how GPUs are joined, and which pairs may reach each other's memory.

Both print a matrix of GPUs; the cells tell them apart. A peer-to-peer matrix does not say which access it is of, so
that is taken from the command in the lines above it. Read on tables of driver 470 to 580.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from fastverify.diagnosis.readers.document import Document
from fastverify.diagnosis.readers.reading import Reading, ReadingBuilder

KIND = "GPU topology"
MARKERS = ("GPU0",)
P2P_CELLS = {"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"}
# From near to far. NV is a bonded set of NVLinks.
LINKS = ("PIX", "PXB", "PHB", "NODE", "SYS")
_LINK = re.compile(r"NV\d{1,3}|PIX|PXB|PHB|NODE|SYS")
# nvidia-smi underlines the header even in a pipe; pasting loses the escape character and keeps the rest.
_UNDERLINE = re.compile(r"\[[04]m")
_ACCESS = re.compile(r"p2p\s+(?:-?\w+\s+)?([rwanp]{1,4})\b")
_ACCESS_NAMES = {"r": "p2p_read", "w": "p2p_write", "a": "p2p_atomics"}
MAX_LINES_ABOVE = 6
MAX_GPUS = 64


@dataclass(frozen=True)
class Matrix:
    """Cells between different GPUs, by row."""

    line: int
    above: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numa_nodes: tuple[str, ...]

    @property
    def cells(self) -> list[str]:
        """Every cell off the diagonal."""
        return [cell for i, row in enumerate(self.rows) for j, cell in enumerate(row) if i != j]


def read_topology(document: Document) -> Reading | None:
    """Links and peer access of every matrix of a text."""
    builder = ReadingBuilder(KIND, document.source)
    for matrix in find_matrices(document):
        cells = set(matrix.cells)
        if cells and cells <= P2P_CELLS:
            _add_peer_access(builder, matrix)
        elif cells and all(_LINK.fullmatch(cell) for cell in cells):
            _add_links(builder, matrix)
    return builder.build() if builder.evidence or builder.notes else None


def find_matrices(document: Document) -> Iterator[Matrix]:
    """Matrices whose header starts with GPU0 and whose rows follow it, indented or quoted or not."""
    lines = document.lines
    for place, (number, text) in enumerate(lines):
        if "GPU0" not in text:
            continue
        header = _UNDERLINE.sub("", text).strip(" \t>|`").split()
        if header[:1] != ["GPU0"] or len(header) > 1 and not header[1].startswith(("GPU", "NIC", "CPU", "mlx")):
            continue
        num_gpus = sum(1 for word in header if re.fullmatch(r"GPU\d{1,2}", word))
        num_links = sum(1 for word in header if re.fullmatch(r"(?:GPU|NIC|mlx5_)\d{1,2}", word))
        rows = [row for _, line in lines[place + 1 : place + 1 + num_gpus] if (row := _row(line)) is not None]
        if len(rows) == num_gpus <= MAX_GPUS and all(len(row) >= num_gpus for row in rows):
            above = tuple(line for _, line in lines[max(0, place - MAX_LINES_ABOVE) : place])
            numa = tuple(row[num_links + 1] for row in rows if len(row) > num_links + 1)
            yield Matrix(number, above, tuple(tuple(row[:num_gpus]) for row in rows), numa)


def _row(line: str) -> list[str] | None:
    words = line.strip(" \t>|`").split()
    return words[1:] if words and re.fullmatch(r"GPU\d{1,2}", words[0]) else None


def _add_links(builder: ReadingBuilder, matrix: Matrix) -> None:
    links = matrix.cells
    nvlinks = [link for link in links if link.startswith("NV")]
    others = [link for link in links if not link.startswith("NV")]
    worst = max(others, key=LINKS.index) if others else min(nvlinks, key=lambda link: int(link[2:]))
    builder.add("hardware.num_gpus", len(matrix.rows), matrix.line)
    builder.add("hardware.worst_link", worst, matrix.line)
    builder.add("hardware.nvlink_all_pairs", not others, matrix.line)
    builder.add("fabric", "nvlink" if not others else "nvlink-partial" if nvlinks else "pcie", matrix.line)
    nodes = {node for node in matrix.numa_nodes if node.isdecimal()}
    if nodes:
        builder.add("hardware.num_numa_nodes", len(nodes), matrix.line)


def _add_peer_access(builder: ReadingBuilder, matrix: Matrix) -> None:
    found = next((match[1] for text in reversed(matrix.above) if (match := _ACCESS.search(text))), "")
    kinds = [_ACCESS_NAMES[letter] for letter in dict.fromkeys(found) if letter in _ACCESS_NAMES]
    granted = set(matrix.cells) == {"OK"}
    for name in kinds:
        builder.add(f"hardware.{name}", granted, matrix.line)
    if not kinds:
        builder.notes.append(
            f"{builder.source}:{matrix.line}: a peer-to-peer table does not say of which access it is. Keep the "
            "command `nvidia-smi topo -p2p r` (or w, a) in the line above it."
        )
    elif not granted:
        pairs = [f"GPU{i}-GPU{j} {c}" for i, row in enumerate(matrix.rows) for j, c in enumerate(row) if i != j]
        refused = [pair for pair in pairs if not pair.endswith("OK")]
        builder.notes.append(f"{builder.source}:{matrix.line}: {', '.join(kinds)} refused: {', '.join(refused[:4])}.")
