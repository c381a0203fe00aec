"""docs/supported-models.md lists every architecture, tensor type and AMD target of the sources, and no other."""

import json
import operator
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from jinja_environment import renderer
from parsing_cases.families import FAMILIES
from parsing_cases.formats import template
from rocmforge.parsing import find_format
from rocmforge.parsing.formats import CallFormat
from rust_source import ROOT

sys.path.insert(0, str(ROOT / "scripts" / "docs"))
sys.path.insert(0, str(ROOT / "scripts" / "setup"))
import local_targets
import model_table

DOCUMENT = (ROOT / "docs" / "supported-models.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    (text,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL)
    return text


def source(*parts: str) -> str:
    return ROOT.joinpath("src", *parts).read_text(encoding="utf-8")


def test_every_architecture_has_a_line_and_every_line_an_architecture() -> None:
    names = [family.models for family in model_table.families()]
    assert len(names) == len(set(names))
    known = model_table.architectures()
    assert len(known) >= 70
    assert {family.architecture for family in model_table.families()} == set(known)


def test_the_tables_are_those_of_the_data() -> None:
    assert [path.name for path in model_table.TABLES if operator.ne(*model_table.updated(path))] == []
    mtp = re.findall(r"^\| [^|]+ \| `([\w-]+)` \|.* MTP \|", section("Models"), re.MULTILINE)
    assert set(mtp) == model_table.with_mtp()
    assert len(mtp) >= 4


def test_a_stale_table_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stale = tmp_path / "README.md"
    stale.write_text(f"{model_table.BEGIN}\n| an old table |\n\n{model_table.END}", encoding="utf-8")
    monkeypatch.setattr(model_table, "ROOT", tmp_path)
    monkeypatch.setattr(model_table, "TABLES", {stale: model_table.short_table})
    with pytest.raises(SystemExit):
        model_table.main([])
    model_table.main(["--write"])
    model_table.main([])
    assert "`llama`" in stale.read_text(encoding="utf-8")


def test_tool_call_formats_are_those_of_the_templates() -> None:
    """A format that the table names is the one that is found in a template with this format."""
    forms = {family.models: (family.tools, family.like) for family in model_table.families()}
    assert [name for name, (tools, like) in forms.items() if tools not in (None, "none") and like is None] == []
    assert {tools for tools, _ in forms.values()} - {None, "none"} == set(get_args(CallFormat))
    for name, (tools, like) in forms.items():
        if like is not None:
            text = FAMILIES.get(like) or template(like)
            assert (find_format(text, renderer(text)).calls or "none") == tools, name


def test_encoders_embed_and_all_others_generate() -> None:
    data = {path.name.split(".")[0] for path in (ROOT / "tests" / "data" / "embedding").glob("*.gguf.xz")}
    folders = sorted((ROOT / "src" / "model" / "arch").glob("*/mod.rs"))
    sources = "".join(path.read_text(encoding="utf-8") for path in folders)
    modules = dict(re.findall(r'Architecture \{ name: "([\w-]+)", spec: (\w+)::', sources))
    generating = {family.architecture for family in model_table.families() if family.generates}
    assert {name for name in modules if modules[name] not in data} == generating


def test_every_tensor_type_is_listed_and_where_it_is_computed_as_stored() -> None:
    rows = re.findall(r"^\| (.*) \| computed as stored \| (.*) \|$", section("Tensor types"), re.MULTILINE)
    types = {name: gpu for names, gpu in rows for name in names.split(", ")}
    # A type with a kernel of its own, but more bytes than in the file.
    packed = {name for name, gpu in types.items() if gpu.startswith("repacked to ")}
    command = [sys.executable, "-m", "rocmforge", "doctor", "--device", "cpu", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(types) == {row["tensor_type"] for row in json.loads(done.stdout)["kernels"] if row["op"] == "linear"}
    kernels = source("gpu", "compile", "kernel_table.rs").split("with_kernel_types!")[0]
    on_gpu = set(re.findall(r"^ {12}\w+ (\w+) \w+$", kernels.split("with_kernels")[0], re.MULTILINE))
    assert {name for name, gpu in types.items() if gpu == "computed as stored"} | packed == on_gpu


def test_every_amd_target_is_listed_with_its_code() -> None:
    served = local_targets.built_targets()
    listed = {}
    for targets, code in re.findall(r"^\| .* \| (`gfx.*?`) \| (.*?) \| .* \|$", section("AMD GPUs"), re.MULTILINE):
        for target in re.findall(r"`(\w+)`", targets):
            listed[target] = target if code == "own" else re.findall(r"`(.*)`", code)[0]
    assert listed == served


def test_simulated_targets_are_those_of_the_makefile() -> None:
    rows = re.findall(r"^\| .* \| `(gfx\w+)` \| .* \| (.*) \|$", section("AMD GPUs"), re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (more,) = re.findall(r"kernels: ((?:gfx\w+, )+)the other size", makefile)
    devices = source("gpu", "testing", "devices.rs")
    commit = set(re.findall(r'const AMD_TARGET: &str = "(\w+)";', devices))
    (names,) = re.findall(r"const DEEP_TARGETS: \[&str; \d+\] = \[(.*?)\];", devices)
    deep = set(re.findall(r'"(\w+)"', names))
    assert {target for target, when in rows if when == "by hand"} == set(more.removesuffix(", ").split(", "))
    assert {target for target, when in rows if when == "by hand"} == deep
    assert {target for target, when in rows if when == "every commit"} == commit
    # A commit's check builds the code of the targets that its tests execute, and no other.
    (built,) = re.findall(r"^export ROCMFORGE_HIP_TARGETS=(.*)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert set(built.split(",")) == commit
