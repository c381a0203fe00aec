"""Architectures without golden data of their own: each is another one by another name, or made of one."""

import numpy as np
import pytest
from conftest import golden_bound
from rocmforge import LLM, ModelFileError
from tiny_models import mixture_of_equals, rewritten, tiny_model


def assert_golden(path, golden):
    """The logits of all golden tokens."""
    with LLM(path, kv_cache_dtype="f32", num_threads=1, max_model_len=128) as llm:
        got = llm.prompt_logits(golden["tokens"])
    assert np.abs(got - golden["logits"]).max() < golden_bound(golden["logits"])


@pytest.mark.parametrize(("source", "name"), [("qwen2", "qwen2vl")])
def test_text_part_of_a_vision_model(source, name, tmp_path, golden_npz):
    """M1: for text, the three positions of its RoPE are one."""
    path = rewritten(tiny_model(source, tmp_path), tmp_path / f"{name}.gguf", renamed=name)
    assert_golden(path, golden_npz(f"arch/{source}"))


def test_granite_with_experts(tmp_path, golden_npz):
    """M1: a mixture of equals is the dense model, and each factor undoes one in the weights."""
    keys = {"embedding_scale": 8.0, "residual_scale": 0.5, "attention.scale": 0.5, "logit_scale": 0.125}
    factors = {"token_embd": 1 / 8, "attn_output": 2, "ffn_down": 2, "attn_q": 2 / 32**0.5}
    path = mixture_of_equals(tmp_path / "granitemoe.gguf", 4, 2, renamed="granitemoe", keys=keys, factors=factors)
    assert_golden(path, golden_npz("arch/llama_tied"))


def test_stablelm_side_by_side(tmp_path, golden_npz):
    """M1: its converter says that feed-forwards are beside attention of models that do not say; their norms tell."""
    parallel = {"stablelm.use_parallel_residual": True}
    source = tiny_model("stablelm", tmp_path)
    assert_golden(rewritten(source, tmp_path / "says.gguf", replace=parallel), golden_npz("arch/stablelm"))
    norms = [f"blk.{layer}.ffn_norm.{part}" for layer in range(3) for part in ("weight", "bias")]
    path = rewritten(source, tmp_path / "is.gguf", replace=parallel, drop=norms)
    with pytest.raises(ModelFileError, match=r"use_parallel_residual: is true, .*StableLM 2 12B.* are not supported"):
        LLM(path)
