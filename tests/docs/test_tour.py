"""The notebook of the tour runs on the real model, and its text is plain."""

import ast
import asyncio
import inspect
import json
from pathlib import Path

import pytest
from test_words import faults, markdown_blocks

NOTEBOOK = Path(__file__).parents[2] / "examples" / "tour.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def sources(kind):
    return ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == kind]


def run_cells(names):
    """Runs the cells as a notebook does: in one namespace, and `await` is allowed in any of them."""
    with asyncio.Runner() as runner:
        for source in sources("code"):
            code = compile(source, str(NOTEBOOK), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(eval(code, names))
            else:
                exec(code, names)


def test_the_tour_runs(smollm2_path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.gguf").symlink_to(smollm2_path)
    names = {}
    run_cells(names)
    batch, alone = names["batch"], names["alone"]
    assert batch[1].outputs[0].text == alone[0].outputs[0].text
    assert 0 < names["turn"].num_cached_tokens < len(names["turn"].prompt_token_ids)
    assert len(names["pieces"]) > 8
    assert set(json.loads(names["city"].text)) == {"name", "population"}
    [call] = names["called"]
    assert call.name == "get_weather"
    assert json.loads(call.arguments)["city"] in {"Oslo", "Rome"}
    assert names["vectors"].shape == (3, names["vectors"].shape[1])
    assert names["stats"].prefix_cache_hits > 0
    assert all(names["answers"])
    assert "from the prefix cache" in capsys.readouterr().out


@pytest.mark.parametrize("source", sources("markdown"), ids=lambda text: text.splitlines()[0])
def test_its_text_is_plain(source):
    assert [fault for block in markdown_blocks(source) for fault in faults(block)] == []


def test_no_output_is_stored():
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in CELLS if cell["cell_type"] == "code")
    assert NOTEBOOK.stat().st_size < 12_000
