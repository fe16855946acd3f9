"""The latency-size curves of an all-reduce benchmark as one HTML page that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import plotly.graph_objects as go

from fastverify.comm.bench import BenchRow


def write_plot(rows: Sequence[BenchRow], path: Path, *, title: str) -> None:
    """Median over message size on logarithmic axes, with the interquartile range as error bars."""
    figure = go.Figure()
    curves = dict.fromkeys((row.backend, row.fused) for row in rows if row.median_us is not None)
    for backend, fused in curves:
        points = [row for row in rows if (row.backend, row.fused) == (backend, fused) and row.median_us is not None]
        figure.add_scatter(
            x=[row.num_bytes for row in points],
            y=[row.median_us for row in points],
            error_y={"type": "data", "array": [(row.iqr_us or 0.0) / 2 for row in points]},
            mode="lines+markers",
            line={"dash": "dot" if fused else "solid"},
            name=f"{backend} + residual + RMSNorm" if fused else backend,
        )
    figure.update_layout(
        title=title,
        template="plotly_white",
        xaxis={"type": "log", "title": "message size of one rank (bytes)"},
        yaxis={"type": "log", "title": "latency (us), slowest rank, median and IQR"},
    )
    figure.write_html(path, include_plotlyjs=True)
