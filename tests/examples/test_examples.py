"""The scripts of `examples/` on the real model; the server has tests of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PRAISE = ("I loved", "The acting is superb", "My whole family laughed", "A touching story")


def run(*arguments):
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_reviews_are_sorted(smollm2_path):
    """Praise before complaints: what anybody who reads them would say."""
    *reviews, logits = run(EXAMPLES / "batch_numpy.py", smollm2_path)
    assert len(reviews) == 8
    assert all(review.split("  ")[-1].startswith(PRAISE) for review in reviews[:4])
    assert logits.startswith("logits (")


def test_the_block_map_is_drawn(tiny_model, tmp_path):
    picture = tmp_path / "block_map.png"
    assert run(EXAMPLES / "block_map.py", tiny_model("quant_models/Q4_0"), picture) == []
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.deep
def test_a_model_is_measured(long_model, tmp_path):
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "-p", "no:cacheprovider", "-W", "ignore"]
    # pytest-benchmark measures nothing in a worker of pytest-xdist, which it knows by these variables.
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST_")}
    variables = outside | {"ROCMFORGE_MODEL": str(long_model)}
    example = [str(EXAMPLES / "bench_model.py"), f"--benchmark-json={report}"]
    done = subprocess.run([*command, *example], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    found = {each["name"]: each for each in json.loads(report.read_text())["benchmarks"]}
    assert list(found) == ["test_prompt", "test_decoding[1]", "test_decoding[8]"]
    for each, tokens in zip(found.values(), (256, 64, 8 * 64), strict=True):
        assert each["extra_info"]["tokens_per_second"] * each["stats"]["median"] == pytest.approx(tokens)
