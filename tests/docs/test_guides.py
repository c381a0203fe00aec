"""The guides and concepts are short, their examples run, and the glossary names what is in the code."""

import contextlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from pictures import drawn, encoded
from rust_source import ROOT, tracked_files
from server_process import serving
from test_docs import blocks

Models: TypeAlias = Callable[[str], Path]
GUIDES = sorted(page for folder in ("guides", "concepts") for page in (ROOT / "docs" / folder).glob("*.md"))
PAGES = [ROOT / "docs" / "getting-started.md", *GUIDES]
EXAMPLES = [
    # The first example of each page at every commit.
    pytest.param(code, id=f"{page.stem}-{number}", marks=[pytest.mark.deep] if number else [])
    for page in PAGES
    for number, code in enumerate(blocks(page.read_text(encoding="utf-8"), "python"))
]
# The model of the tests has no format for tool calls in its template; this one is Hermes'.
TEMPLATE = """{%- for tool in tools or [] %}{{ '<tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>' }}
{{ tool | tojson }}{% endfor %}
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}{{ '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_a_guide_is_short(guide: Path) -> None:
    assert len(guide.read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_examples_of_the_guides_run(code: str, smollm2_path: Path, vision_model: Models, tmp_path: Path) -> None:
    model = smollm2_path
    if "photo.jpg" in code:
        model = vision_model("qwen25vl")
        (tmp_path / "mmproj-model.gguf").symlink_to(model.with_name("mmproj-qwen25vl.gguf"))
        (tmp_path / "photo.jpg").write_bytes(encoded(drawn(), "JPEG"))
    (tmp_path / "model.gguf").symlink_to(model)
    (tmp_path / "template.jinja").write_text(TEMPLATE, encoding="utf-8")
    options = ("--chat-template", str(tmp_path / "template.jinja")) if "tools=" in code else ()
    with contextlib.ExitStack() as stack:
        if "localhost:8000" in code:
            server = stack.enter_context(serving(tmp_path, tmp_path / "model.gguf", *options))
            code = code.replace("http://localhost:8000", server.url)
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def glossary() -> list[tuple[str, str, list[str]]]:
    """The rows of the glossary: term, meaning, names in the code."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|`]+) \| ([^|]+) \| (`[^|]+`) \|$", text, re.MULTILINE)
    return [(term, meaning, re.findall(r"`(\w+)`", names)) for term, meaning, names in rows]


def test_the_glossary_has_one_sentence_for_each_term() -> None:
    rows = glossary()
    assert 35 <= len(rows) <= 60
    for term, meaning, names in rows:
        sentence = re.sub(r"`[^`]*`", "name", meaning)
        assert sentence.endswith("."), term
        assert ". " not in sentence, term
        assert len(sentence.split()) <= 25, term
        assert names, term


def test_names_of_the_glossary_are_in_the_code() -> None:
    paths = [path for path in tracked_files() if path.suffix in {".rs", ".py", ".pyi", ".h", ".hip"}]
    sources = [path.read_text(encoding="utf-8") for path in paths if path.relative_to(ROOT).parts[0] != "tests"]
    words = set(re.findall(r"\w+", "\n".join(sources)))
    assert [name for _, _, names in glossary() for name in names if name not in words] == []
