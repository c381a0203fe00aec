#!/usr/bin/env python3
"""Draws the throughput charts of the documentation, as SVG, from docs/throughput.json.

Usage: throughput_chart.py [FOLDER]
  FOLDER  holds throughput.json and receives the charts; by default docs

A chart is a grid of horizontal bars: a row for each engine, a column for each workload. Columns have scales of their
own, unless the chart marks equal speed (`equal`). The colours follow the reader's light or dark theme.
"""

import json
import sys
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[2]
WIDTH, MARGIN, LABELS, GAP, ROW, TOP = 900, 20, 122, 16, 26, 84
# Room for the value to the right of a full bar.
VALUE = 54
STYLE = """
    text { font: 13px system-ui, sans-serif; fill: #1f2328 }
    .title { font-size: 16px; font-weight: 600 }
    .note, .column { font-size: 12px; fill: #59636e }
    .own { font-weight: 600 }
    .card { fill: #ffffff; stroke: #d1d9e0 }
    .bar { fill: #a3b1c2 }
    .bar.own { fill: #d9580d }
    .equal { stroke: #59636e; stroke-dasharray: 3 3 }
    @media (prefers-color-scheme: dark) {
      text { fill: #f0f6fc }
      .note, .column { fill: #9198a1 }
      .card { fill: #0d1117; stroke: #3d444d }
      .bar { fill: #56657a }
      .bar.own { fill: #f08a3c }
      .equal { stroke: #9198a1 }
    }
"""


def text(x: float, y: float, kind: str, content: str, anchor: str = "start") -> str:
    """One line of text."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(content)}</text>'


def draw(chart: dict[str, Any]) -> str:
    """Returns the SVG document of one chart."""
    columns, rows, unit = chart["columns"], chart["rows"], chart.get("unit", "")
    height = TOP + ROW * len(rows) + 24 + 18 * len(chart["note"])
    step = (WIDTH - 2 * MARGIN - LABELS + GAP) / len(columns)
    longest = step - GAP - VALUE
    largest = [max(row[number] or 0 for row in rows.values()) for number in range(len(columns))]
    if "equal" in chart:
        largest = [max(largest)] * len(columns)

    parts = [text(MARGIN, 32, "title", chart["title"])]
    for number, column in enumerate(columns):
        left = MARGIN + LABELS + number * step
        parts.append(text(left, TOP - 14, "column", column))
    for place, (name, values) in enumerate(rows.items()):
        y = TOP + place * ROW
        kind = "own" if name.startswith("rocmforge") or "equal" in chart else "peer"
        parts.append(text(MARGIN + LABELS - 12, y + 14, kind, name, "end"))
        for number, value in enumerate(values):
            left = MARGIN + LABELS + number * step
            if value is None:
                parts.append(text(left, y + 14, "note", "not measured"))
                continue
            width = longest * value / largest[number]
            parts.append(f'<rect class="bar {kind}" x="{left:.1f}" y="{y}" width="{width:.1f}" height="18" rx="2"/>')
            parts.append(text(left + width + 6, y + 14, kind, f"{value:,}{unit}"))
    if "equal" in chart:
        bottom = TOP + ROW * len(rows) - 2
        for number in range(len(columns)):
            x = MARGIN + LABELS + number * step + longest * chart["equal"] / largest[number]
            parts.append(f'<line class="equal" x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{bottom}"/>')
    for number, line in enumerate(chart["note"]):
        parts.append(text(MARGIN, TOP + ROW * len(rows) + 22 + 18 * number, "note", line))

    body = "\n  ".join(parts)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">
  <title>{escape(chart["title"])}</title>
  <style>{STYLE}  </style>
  <rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>
  {body}
</svg>
"""


def main(folder: Path) -> None:
    charts = json.loads((folder / "throughput.json").read_text(encoding="utf-8"))
    for name, chart in charts.items():
        (folder / name).write_text(draw(chart), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs")
