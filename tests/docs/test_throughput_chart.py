"""The throughput charts in docs/ are what scripts/docs/throughput_chart.py draws of docs/throughput.json."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rust_source import ROOT

DOCS = ROOT / "docs"
CHARTS = json.loads((DOCS / "throughput.json").read_text(encoding="utf-8"))
WRITE = "run scripts/docs/throughput_chart.py"


def test_charts_are_drawn_from_the_data(tmp_path: Path) -> None:
    shutil.copy(DOCS / "throughput.json", tmp_path)
    subprocess.run([sys.executable, ROOT / "scripts" / "docs" / "throughput_chart.py", tmp_path], check=True)
    drawn = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.glob("*.svg")}
    assert set(drawn) == set(CHARTS)
    for name, picture in drawn.items():
        assert (DOCS / name).read_text(encoding="utf-8") == picture, WRITE


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_shows_every_figure_within_its_bounds(name: str) -> None:
    chart, picture = CHARTS[name], ET.parse(DOCS / name).getroot()
    shown = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    values = [value for row in chart["rows"].values() for value in row]
    for value in values:
        assert ("not measured" if value is None else f"{value:,}{chart.get('unit', '')}") in shown
    bars = [bar for bar in picture.iter("{http://www.w3.org/2000/svg}rect") if "bar" in bar.get("class", "")]
    assert len(bars) == len([value for value in values if value is not None])
    assert all(0 < float(bar.get("x", 0)) < float(bar.get("x", 0)) + float(bar.get("width", 0)) < 850 for bar in bars)


def test_the_tables_have_the_figures_of_the_charts() -> None:
    tables = (DOCS / "performance.md").read_text(encoding="utf-8")
    for chart in CHARTS.values():
        figures = [f"{value:,}{chart.get('unit', '')}" for row in chart["rows"].values() for value in row if value]
        assert [figure for figure in figures if f"| {figure} |" not in tables] == []
