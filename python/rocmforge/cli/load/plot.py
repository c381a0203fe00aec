"""A chart of a growing load: the latency of a request against the throughput of the engine or server."""

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rocmforge.cli.load.report import LoadReport, percentile_name

PANEL_INCHES = (8.0, 3.0)


def draw_loads(reports: Sequence[LoadReport], title: str, file: Path) -> None:
    """Draws a panel for each metric, in it a line for each percentile and a point for each load.

    Args:
        reports: The loads, in the order in which the lines join them, with the same metrics and percentiles.
        title: Lines above the panels.
        file: The output file; its suffix selects the format.
    """
    metrics = list(reports[0].times)
    width, height = PANEL_INCHES
    # Texts stay texts in an SVG.
    with mpl.rc_context({"svg.fonttype": "none"}):
        figure = Figure(figsize=(width, 1 + height * len(metrics)), layout="constrained")
        panels = figure.subplots(len(metrics), 1, sharex=True, squeeze=False)[:, 0]
        for axes, metric in zip(panels, metrics, strict=True):
            _draw_metric(axes, reports, metric)
        panels[-1].set_xlabel("output tokens per second")
        # All panels have the same lines.
        lines = panels[0].get_legend_handles_labels()
        figure.legend(*lines, loc="outside lower center", ncols=len(lines[0]) or 1)
        figure.suptitle(title, fontsize="medium", parse_math=False)
        figure.savefig(file, dpi=120)


def _draw_metric(axes: Axes, reports: Sequence[LoadReport], metric: str) -> None:
    # Names of loads are next to their points.
    axes.margins(x=0.1, y=0.15)
    # A load without a completed request, or whose answers came in one piece each, has no such times.
    points = [(one, times) for one in reports if (times := one.times[metric]) is not None]
    throughputs = [one.output_throughput for one, _ in points]
    for percentile in points[0][1].percentiles if points else ():
        values = [times.percentiles[percentile] for _, times in points]
        axes.plot(throughputs, values, "o-", label=percentile_name(percentile))
    for one, times in points:
        highest = max(times.percentiles.values())
        axes.annotate(_load_name(one), (one.output_throughput, highest), (0, 5), textcoords="offset points", size=8)
    axes.set_ylabel(f"{metric.upper()}, ms")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)


def _load_name(one: LoadReport) -> str:
    """Names a load by what it was limited to."""
    parts = [] if one.max_concurrency is None else [f"{one.max_concurrency} at once"]
    parts += [f"{one.request_rate:g}/s"] if math.isfinite(one.request_rate) else []
    return ", ".join(parts) or "all at once"
