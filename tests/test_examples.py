"""The scripts of `examples/` on the real model; the server has tests of its own."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"
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
