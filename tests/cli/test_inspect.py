"""`rocmforge inspect` and `rocmforge check`: what a file holds, where it runs, and what is wrong with it."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from parsing_cases.formats import template as template_of
from test_cli import process, run
from tiny_models import rewritten
from tiny_models import tiny_model as golden_model

import gguf


def test_inspect_json_holds_everything(model):
    report = json.loads(run("inspect", model, "--json").stdout)
    assert report["metadata"]["general.architecture"] == "llama"
    assert len(report["metadata"]["tokenizer.ggml.tokens"]) == 512
    embedding = next(tensor for tensor in report["tensors"] if tensor["name"] == "token_embd.weight")
    assert embedding["shape"] == [256, 512]


def test_inspect_shows_the_form_of_calls(model, tmp_path):
    """C22: a form that is derived from the template is shown by an example, without control characters."""
    assert "tool calls" not in process("inspect", model).stdout
    template = "{% for m in messages %}<{{ m.role }}>{% for c in m.tool_calls or [] %}<call\x1b>{{ c.function.name }}({{ c.function.arguments | tojson }})</call>{% else %}{{ m.content }}{% endfor %}</s>{% endfor %}"  # noqa: E501 - a template
    file = rewritten(model, tmp_path / "calls.gguf", extra={"tokenizer.chat_template": template})
    assert r"'<call\x1b>NAME({…})</call>'" in process("inspect", file).stdout
    file = rewritten(model, tmp_path / "none.gguf", extra={"tokenizer.chat_template": "{{ messages[0].content }}"})
    assert "tool calls\tnone\nreasoning\tnone\n" in process("inspect", file).stdout
    for name, shown in (
        ("Qwen-Qwen3-0.6B", "tool calls\thermes\nreasoning\t<think>…</think>\n"),
        ("openai-gpt-oss-20b", "tool calls\tharmony\nreasoning\tharmony\n"),
    ):
        file = rewritten(model, tmp_path / f"{name}.gguf", extra={"tokenizer.chat_template": template_of(name)})
        assert shown in process("inspect", file).stdout


def test_inspect_says_where_a_file_runs(model, tmp_path):
    assert json.loads(run("inspect", model, "--json").stdout)["devices"] == {"cpu": None, "gpu": None}
    assert "can run on\tcpu and gpu\n" in process("inspect", model).stdout
    other = rewritten(Path(model), tmp_path / "other.gguf", replace={"general.architecture": "rwkv6"})
    devices = json.loads(run("inspect", other, "--json").stdout)["devices"]
    assert "'rwkv6' is not supported" in devices["cpu"]
    assert devices["gpu"] == devices["cpu"]
    assert "can run on\tno device\n" in process("inspect", other).stdout


def of_an_unknown_type(source, target):
    """A copy of a model whose first matrix has a tensor type that nobody knows."""
    data = bytearray(source.read_bytes())
    tensor = next(tensor for tensor in gguf.GGUFReader(source).tensors if tensor.name == "token_embd.weight")
    # The name, the number of dimensions, the dimensions, then the type.
    place = data.find(tensor.name.encode()) + len(tensor.name) + 4 + 8 * len(tensor.shape)
    assert struct.unpack_from("<I", data, place)[0] == tensor.tensor_type
    struct.pack_into("<I", data, place, 77)
    target.write_bytes(data)
    return target


UNSUPPORTED = {
    "architecture": ({"replace": {"general.architecture": "novel"}}, ["architecture"], "'novel' is not supported"),
    "rope": (
        {"replace": {"llama.rope.scaling.type": "novel"}},
        ["RoPE"],
        "llama.rope.scaling.type: 'novel' is not supported; none, linear, yarn and longrope are",
    ),
    "tokenizer": (
        {"replace": {"tokenizer.ggml.model": "novel"}},
        ["tokenizer"],
        "tokenizer.ggml.model: unknown kind of tokenizer 'novel'",
    ),
    "both": (
        {"replace": {"general.architecture": "novel", "tokenizer.ggml.model": "other"}},
        ["architecture", "tokenizer"],
        "tokenizer.ggml.model: unknown kind of tokenizer 'other'",
    ),
    "experts": ({"extra": {"llama.expert_count": 8}}, ["experts"], "llama.expert_"),
    "key": ({"extra": {"llama.novel_factor": 2.0}}, ["key"], "llama.novel_factor: holds f32 2"),
    "tensor": (
        {"tensors": {"blk.0.novel.weight": np.zeros((4, 32), np.float32)}},
        ["tensor"],
        "blk.0.novel.weight: is not a tensor of a llama model",
    ),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_inspect_names_the_parts_that_are_unsupported(tmp_path, name):
    changes, parts, said = UNSUPPORTED[name]
    file = rewritten(golden_model("llama_yarn", tmp_path), tmp_path / "other.gguf", **changes)
    report = json.loads(run("inspect", file, "--json").stdout)
    assert [one["part"] for one in report["unsupported"]] == parts
    assert said in report["unsupported"][-1]["problem"]
    assert report["tasks"] == []
    shown = process("inspect", file).stdout
    lines = [line for line in shown.splitlines() if line.startswith("unsupported: ")]
    assert [line.split("\t")[0] for line in lines] == [f"unsupported: {part}" for part in parts]
    assert said in lines[-1]
    # The names of all architectures are left to the documentation.
    assert "gpt-oss" not in shown


def test_inspect_of_a_file_that_runs_names_no_part(model):
    assert json.loads(run("inspect", model, "--json").stdout)["unsupported"] == []
    assert "unsupported" not in process("inspect", model).stdout


def test_inspect_names_a_tensor_of_an_unknown_type(model, tmp_path):
    done = process("inspect", of_an_unknown_type(model, tmp_path / "other.gguf"))
    assert done.returncode == 1
    assert "token_embd.weight: tensor type 77 is not known" in done.stderr


def test_inspect_agrees_with_the_gguf_package(model):
    reader = gguf.GGUFReader(model)
    report = json.loads(run("inspect", model, "--json").stdout)
    tensors = [(t.name, list(map(int, t.shape)), t.tensor_type.name, int(t.n_bytes)) for t in reader.tensors]
    assert [(t["name"], t["shape"], t["type"], t["bytes"]) for t in report["tensors"]] == tensors
    keys = [key for key in reader.fields if not key.startswith("GGUF.")]
    assert list(report["metadata"]) == keys


def test_inspect_in_a_pipe_is_plain(model):
    done = process("inspect", model)
    assert "general.architecture\t'llama'" in done.stdout
    assert "token_embd.weight" not in done.stdout
    assert "... 512 in all]" in done.stdout
    assert done.stdout.isascii() or "\x1b" not in done.stdout
    assert "token_embd.weight\t256 x 512\t" in process("inspect", model, "--tensors").stdout


def test_inspect_begins_with_a_summary(smollm2_path):
    """Against the gguf package's reading of the file."""
    reader = gguf.GGUFReader(smollm2_path)
    parameters = sum(int(tensor.n_elements) for tensor in reader.tensors)
    size = sum(int(tensor.n_bytes) for tensor in reader.tensors)
    rows = dict(line.split("\t") for line in process("inspect", smollm2_path).stdout.partition("\n\n")[0].splitlines())
    assert rows["parameters"] == f"{parameters / 1e6:.1f}M"
    assert rows["weights"] == f"{size / 1e6:.1f} MB"
    assert rows["architecture"] == "llama"
    assert (rows["layers"], rows["context length"], rows["vocabulary"]) == ("30", "8192", "49152")
    assert rows["tensor types"].startswith("Q4_1 ")
    assert rows["tensors"] == str(len(reader.tensors))


@pytest.mark.parametrize(
    ("tensor", "part"),
    [("ssm_f_a", "Kimi Delta Attention"), ("indexer.proj", "sparse attention with an indexer"), ("attn_extra", None)],
)
def test_inspect_names_the_parts_that_are_missing(model, tmp_path, tensor, part):
    """The tensors of a file with an unknown architecture show them."""
    name = f"blk.1.{tensor}.weight"
    unknown = rewritten(
        Path(model), tmp_path / "unknown.gguf", renamed="kimi-linear", tensors={name: np.ones((2, 32), np.float32)}
    )
    rows = dict(line.split("\t") for line in process("inspect", unknown).stdout.partition("\n\n")[0].splitlines())
    assert rows["serves"] == "nothing: this version does not run it"
    assert rows.get("not supported") == (part and f"{part} ({name})")


@pytest.mark.parametrize(
    "damage",
    [
        {"tokenizer.ggml.tokens": 5},
        {"llama.block_count": "many", "llama.context_length": "long"},
        {"general.name": 7},
    ],
    ids=lambda damage: next(iter(damage)),
)
def test_inspect_shows_what_no_engine_takes(model, tmp_path, damage):
    """It is what one looks at such a file with: as it is, and without what it does not say."""
    damaged = rewritten(Path(model), tmp_path / "damaged.gguf", drop=damage, extra=damage)
    done = run("inspect", damaged, "--json")
    assert done.exit_code == 0, done.exception
    metadata = json.loads(done.stdout)["metadata"]
    assert {key: metadata[key] for key in damage} == damage
    done = run("inspect", damaged)
    assert done.exit_code == 0, done.exception
    summary, _, _ = done.stdout.partition("\n\n")
    shown = {line.split("\t")[0] for line in summary.splitlines()}
    assert {"parameters", "weights", "tensor types"} <= shown
    rows = {
        "tokenizer.ggml.tokens": "vocabulary",
        "llama.block_count": "layers",
        "llama.context_length": "context length",
    }
    assert not shown & {rows[key] for key in damage if key in rows}


def test_check_of_a_good_file(model):
    done = run("check", model)
    assert done.exit_code == 0
    assert done.stdout.endswith("valid\n")
    report = json.loads(run("check", model, "--json").stdout)
    assert report["valid"]
    assert [stage["stage"] for stage in report["stages"]] == [
        "file",
        "architecture",
        "tokenizer",
        "chat template",
        "sampling",
        "values",
    ]


def test_check_reports_every_problem(bad_gguf):
    """L4, L11: typed, and the exit code says so."""
    index = json.loads((bad_gguf / "index.json").read_text())
    for name in sorted(name for name, about in index.items() if about["expect"] == "reject"):
        done = run("check", bad_gguf / name, "--json")
        assert done.exit_code == 1, name
        problems = [problem for stage in json.loads(done.stdout)["stages"] for problem in stage["problems"]]
        assert problems, name
        assert {problem["error"] for problem in problems} <= {"ModelFileError", "InvalidRequestError"}, name


def test_check_warns_of_a_missing_base_of_rope(tmp_path):
    """F10: only of families whose published models have another base than the format's default."""
    for name, warned in (("qwen2", True), ("llama_tied", False)):
        whole = golden_model(name, tmp_path)
        key = f"{name.split('_')[0]}.rope.freq_base"
        assert key in gguf.GGUFReader(whole).fields
        done = run("check", rewritten(whole, tmp_path / f"{name}-without.gguf", drop=[key]))
        assert done.exit_code == 0, done.stdout
        assert (f"{key} is missing" in done.stdout) == warned
        assert key not in run("check", whole).stdout


def test_check_finds_values_that_are_not_finite(model, tmp_path):
    damaged = tmp_path / "nan.gguf"
    data = bytearray(Path(model).read_bytes())
    tensor = next(t for t in gguf.GGUFReader(model).tensors if t.name == "output_norm.weight")
    data[tensor.data_offset + 8 : tensor.data_offset + 12] = b"\x00\x00\xc0\x7f"
    damaged.write_bytes(data)
    done = run("check", damaged)
    assert done.exit_code == 1
    assert "output_norm.weight" in done.stdout


def test_inspect_tells_image_encoders(vision_model):
    """The encoder's file says what it is for, and its model which encoders lie beside it."""
    model = vision_model("qwen3vl")
    assert "image encoders beside it\tmmproj-qwen3vl.gguf\n" in process("inspect", model).stdout
    encoder = process("inspect", model.with_name("mmproj-qwen3vl.gguf"), "--no-tensors")
    assert "serves\timages, beside the file of its text model (image encoder qwen3vl_merger)\n" in encoder.stdout
    assert "layers\t4\n" in encoder.stdout
    assert "can run on" not in encoder.stdout
    # Gemma 4 names it by another key.
    encoder = process("inspect", vision_model("gemma4e").with_name("mmproj-gemma4e.gguf"), "--no-tensors")
    assert "(image encoder gemma4v)\n" in encoder.stdout
