"""Names and paths that other engines take: the message says what to give here."""

import ast
import inspect
import re
import typing
from pathlib import Path

import pytest
import rocmforge
from rocmforge import LLM, AsyncLLM, InvalidRequestError, ModelFileError, SamplingParams
from rocmforge._rocmforge import default_settings
from rocmforge.requests.arguments import INSTEAD, MEANT
from rocmforge.settings import PROCESS_DEFAULTS, EngineSettings


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("n_ctx", "max_model_len"),
        ("n_threads", "num_threads"),
        ("gpu_memory_utilization", "kv_cache_memory"),
        ("tensor_parallel_size", "one device"),
        ("n_gpu_layers", "gpu_layers"),
        ("n_cpu_moe", "cpu_experts"),
        ("max_modl_len", "did you mean max_model_len"),
        ("quite_unknown", "its arguments are model, device"),
    ],
)
def test_unknown_arguments_are_named_with_what_is_meant(name, hint):
    with pytest.raises(TypeError) as raised:
        LLM("model.gguf", **{name: 1})
    message = str(raised.value)
    assert message.startswith(f"LLM() got an unexpected keyword argument '{name}'; ")
    assert hint in message
    with pytest.raises(TypeError, match=r"^AsyncLLM\(\) got"):
        AsyncLLM("model.gguf", **{name: 1})


@pytest.mark.parametrize(
    ("name", "meant"),
    [("temprature", "temperature"), ("max_new_tokens", "max_tokens"), ("repeat_penalty", "repetition_penalty")],
)
def test_unknown_sampling_parameters_are_named_with_what_is_meant(name, meant):
    problem = rf"^SamplingParams\(\) got an unexpected keyword argument '{name}'; did you mean {meant}\?$"
    with pytest.raises(TypeError, match=problem):
        SamplingParams(**{name: 1})


def test_hints_lead_to_arguments_that_exist():
    known = inspect.signature(LLM).parameters
    assert set(MEANT.values()) <= set(known)
    assert not (set(MEANT) | set(INSTEAD)) & set(known)


def test_defaults_are_the_engines():
    """There is one source of them; and no setting is missing in the help, or in the table of the types."""
    parameters = inspect.signature(LLM).parameters
    defaults = default_settings()
    assert {name: parameters[name].default for name in defaults} == defaults
    assert set(parameters) - set(defaults) == {
        "model",
        "kv_cache_memory_bytes",
        "progress",
        "on_load",
        *PROCESS_DEFAULTS,
    }
    assert list(defaults) == list(typing.get_type_hints(EngineSettings))
    assert sorted(documented(inspect.getdoc(LLM))) == sorted(parameters)
    assert inspect.signature(AsyncLLM) == inspect.signature(LLM)
    params = SamplingParams()
    assert list(inspect.signature(SamplingParams).parameters) == sampling_fields()
    for name, parameter in inspect.signature(SamplingParams).parameters.items():
        value = getattr(params, name)
        # An empty list or dictionary is `None` in a signature.
        assert (value or None if parameter.default is None else value) == parameter.default, name


def sampling_fields():
    """The engine's own list of them: `repr` goes through it."""
    return re.findall(r"(\w+)=", repr(SamplingParams()))


def documented(docstring):
    """The names under `Args`, in their order."""
    [args] = re.findall(r"Args:\n(.*?)(?:\n\n|\Z)", inspect.cleandoc(docstring), re.DOTALL)
    return re.findall(r"^    (\w+): ", args, re.MULTILINE)


def test_sampling_params_are_the_same_wherever_they_are_written_out():
    """In the signature, as attributes, and in both docstrings; stubtest compares types and defaults."""
    stub = ast.parse(Path(rocmforge.__file__).with_name("_params.pyi").read_text(encoding="utf-8"))
    [params] = [node for node in stub.body if isinstance(node, ast.ClassDef) and node.name == "SamplingParams"]
    functions = {node.name: node for node in params.body if isinstance(node, ast.FunctionDef)}
    assert [argument.arg for argument in functions["__new__"].args.args] == ["cls", *sampling_fields()]
    assert [name for name, node in functions.items() if node.decorator_list] == sampling_fields()
    assert documented(ast.get_docstring(params)) == documented(SamplingParams.__doc__) == sampling_fields()
    attributes = [name for name in vars(SamplingParams) if inspect.isgetsetdescriptor(vars(SamplingParams)[name])]
    assert sorted(attributes) == sorted(sampling_fields())


def test_arguments_win_over_the_environment(model, monkeypatch, assert_nothing_left):
    monkeypatch.setenv("ROCMFORGE_CPU_ISA", "abacus")
    with pytest.raises(InvalidRequestError, match="abacus"):
        LLM(model, device="cpu")
    with LLM(model, device="cpu", cpu_isa="scalar") as llm:
        assert "scalar" in llm.describe()
        assert_nothing_left(llm)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"self_test": "yes"}, TypeError, "self_test: got <class 'str'>, expected True or False"),
        ({"device": 1}, TypeError, "device: got <class 'int'>, expected a text"),
        ({"speculative_config": "ngram"}, TypeError, "speculative_config: got <class 'str'>, expected a dictionary"),
        ({"cache_dir": 1}, TypeError, "cache_dir: got <class 'int'>, expected a path"),
        ({"block_size": None}, TypeError, "block_size: got <class 'NoneType'>, expected an integer"),
        ({"gpu_platform": "cuda"}, InvalidRequestError, "gpu_platform: got cuda, expected 'amd' or 'nvidia'"),
        (
            {"kv_cache_dtype": "q8"},
            InvalidRequestError,
            "kv_cache_dtype: got q8, expected 'f16', 'f32', 'int8' or 'int4'",
        ),
        ({"compute_dtype": "fp4"}, InvalidRequestError, "compute_dtype: got fp4, expected 'auto' or 'fp8'"),
        (
            {"compute_dtype": "fp8", "device": "cpu"},
            InvalidRequestError,
            "compute_dtype: got fp8, expected 'auto' on the",
        ),
        ({"device": "cuda", "gpu_platform": "amd"}, InvalidRequestError, "device: got cuda, expected a device of"),
    ],
)
def test_a_wrong_setting_is_named(model, settings, error, message):
    with pytest.raises(error, match=re.escape(message)):
        LLM(model, **settings)


def test_vllms_name_of_the_cache_size(tiny_model, assert_nothing_left):
    model = tiny_model("quant_models/Q4_0")
    with LLM(model, kv_cache_memory_bytes=4_000_000) as theirs, LLM(model, kv_cache_memory=4_000_000) as ours:
        assert theirs.config()["num_blocks"] == ours.config()["num_blocks"]
        assert_nothing_left(theirs)
    with pytest.raises(InvalidRequestError, match="kv_cache_memory_bytes as well"):
        LLM(model, kv_cache_memory=1, kv_cache_memory_bytes=1)


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("nope.gguf", "expected the path of a .gguf file: 'nope.gguf'"),
        ("models/nope.gguf", "expected the path of a .gguf file: 'models/nope.gguf'"),
        ("/models/Qwen3", "expected the path of a .gguf file: '/models/Qwen3'"),
        ("Qwen/Qwen3-0.6B-GGUF", "on the Hugging Face hub give hf:Qwen/Qwen3-0.6B-GGUF: "),
        ("Qwen/Qwen3-0.6B-GGUF:Q8_0", "on the Hugging Face hub give hf:Qwen/Qwen3-0.6B-GGUF:Q8_0: "),
        ("smollm2", "for a model that Ollama has downloaded give ollama:smollm2: 'smollm2'"),
        ("model.bin", "expected the path of a .gguf file: 'model.bin'"),
        ("llama3.2", "for a model that Ollama has downloaded give ollama:llama3.2: 'llama3.2'"),
        ("smollm2:135m", "for a model that Ollama has downloaded give ollama:smollm2:135m: 'smollm2:135m'"),
        ("hf.co/Qwen/Qwen3-0.6B-GGUF", "on the Hugging Face hub give hf:Qwen/Qwen3-0.6B-GGUF: "),
    ],
)
def test_a_model_that_is_not_there(path, hint):
    with pytest.raises(FileNotFoundError) as raised:
        LLM(path)
    assert hint in str(raised.value)
    assert path in str(raised.value)
    assert raised.value.filename == path


@pytest.mark.parametrize(
    ("head", "hint"),
    [
        (b'\x40\0\0\0\0\0\0\0{"weight":{"dtype":"BF16"', "convert_hf_to_gguf.py"),
        (b"<!DOCTYPE html>\n<html><head><title>Sign in", "HTML page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "git lfs pull"),
        (b"PK\x03\x04" + bytes(40), "zip archive"),
    ],
)
def test_files_of_other_kinds_are_named(tmp_path, head, hint):
    path = tmp_path / "model.gguf"
    path.write_bytes(head)
    with pytest.raises(ModelFileError, match=hint):
        LLM(path)


def test_advice_about_a_long_prompt_can_be_followed(tiny_model, assert_nothing_left):
    model = tiny_model("quant_models/Q4_0")
    with LLM(model, max_num_seqs=1) as llm:
        longest = llm.config()["context_length"]
        assert llm.config()["max_model_len"] == longest
        with pytest.raises(InvalidRequestError, match="made for no more: shorten it") as raised:
            llm.generate([1] * (longest + 1), progress=False)
        assert "larger max_model_len" not in str(raised.value)
        assert_nothing_left(llm)
    with LLM(model, max_num_seqs=1, max_model_len=32) as llm:
        with pytest.raises(InvalidRequestError, match=f"larger max_model_len .the model's limit is {longest}"):
            llm.generate([1] * 40, progress=False)
        assert_nothing_left(llm)


def test_an_empty_stop_text_is_named():
    with pytest.raises(InvalidRequestError, match="stop: got an empty text"):
        SamplingParams(stop="")
