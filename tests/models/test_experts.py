"""Mixtures of experts as files say them: what is honoured, and what is an error by name."""

import numpy as np
import pytest
from conftest import golden_bound
from rocmforge import LLM, ModelFileError
from tiny_models import mixture_of_equals, rewritten, tiny_model

LAYERS = 2
EXPERTS = 8
PROMPT = [5, 17, 3, 42, 99, 7]


@pytest.fixture
def qwen3moe(tmp_path):
    return tiny_model("qwen3moe", tmp_path)


def logits(path, tokens=PROMPT):
    with LLM(path, kv_cache_dtype="f32", num_threads=1) as llm:
        return llm.prompt_logits(tokens)


def assert_refused(path, name):
    with pytest.raises(ModelFileError, match=name):
        LLM(path, num_threads=1)


@pytest.mark.parametrize(
    ("count", "used", "keys", "factor"),
    [
        (4, 2, {}, 1),
        (5, 5, {}, 1),
        (1, 1, {}, 1),
        # All are used, so their shares of the softmax add up to 1 by themselves.
        (3, 3, {"expert_weights_norm": False}, 1),
        (4, 1, {"expert_weights_scale": 0.5}, 2),
        (4, 2, {"expert_weights_scale": 0.0}, 1),
    ],
)
def test_a_mixture_of_equals_is_the_dense_model(count, used, keys, factor, tmp_path, golden_npz):
    """`llama` with experts (Mixtral): whichever are chosen, the weighted sum of equals is one of them."""
    golden = golden_npz("arch/llama_tied")
    model = mixture_of_equals(tmp_path / "mixture.gguf", count, used, keys=keys, factors={"ffn_down": factor})
    got = logits(model, golden["tokens"])
    assert np.abs(got - golden["logits"]).max() < golden_bound(golden["logits"])


@pytest.mark.parametrize("key", ["expert_count", "expert_used_count", "expert_feed_forward_length"])
def test_missing_expert_key_is_named(key, qwen3moe, tmp_path):
    """S25: no default stands in for a key that the architecture requires."""
    assert_refused(rewritten(qwen3moe, tmp_path / "bare.gguf", drop=[f"qwen3moe.{key}"]), f"qwen3moe.{key}")


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("expert_used_count", EXPERTS + 1, "expert_used_count"),
        ("expert_used_count", 0, "expert_used_count"),
        ("expert_count", 0, "expert_count"),
        ("expert_count", EXPERTS - 1, "ffn_gate_inp"),
        ("expert_feed_forward_length", 128, "ffn_gate_exps"),
    ],
)
def test_expert_key_that_contradicts_is_an_error(key, value, named, qwen3moe, tmp_path):
    """S25: against other keys, and against every tensor's shape."""
    assert_refused(rewritten(qwen3moe, tmp_path / "wrong.gguf", replace={f"qwen3moe.{key}": value}), named)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expert_shared_count", 1),
        ("expert_shared_feed_forward_length", 96),
        ("leading_dense_block_count", 1),
        ("expert_group_count", 2),
        ("expert_group_used_count", 2),
        ("interleave_moe_layer_step", 2),
        ("moe_every_n_layers", 2),
        ("expert_gating_func", 3),
    ],
)
def test_what_is_not_computed_is_refused(key, value, qwen3moe, tmp_path):
    """No setting that would change the results is ignored."""
    assert_refused(rewritten(qwen3moe, tmp_path / "more.gguf", extra={f"qwen3moe.{key}": value}), key)


def test_keys_that_ask_for_nothing_change_nothing(qwen3moe, tmp_path):
    keys = {"expert_shared_count": 0, "expert_group_count": 1, "expert_gating_func": 1, "expert_weights_norm": True}
    copy = rewritten(qwen3moe, tmp_path / "same.gguf", extra={f"qwen3moe.{k}": v for k, v in keys.items()})
    assert np.array_equal(logits(qwen3moe), logits(copy))


@pytest.mark.parametrize("kind", ["gate_inp", "gate_exps", "up_exps", "down_exps"])
def test_missing_tensor_is_named(kind, qwen3moe, tmp_path):
    """The last layer counts like every other."""
    name = f"blk.{LAYERS - 1}.ffn_{kind}.weight"
    assert_refused(rewritten(qwen3moe, tmp_path / "less.gguf", drop=[name]), name)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("gate_inp", (EXPERTS - 1, 128)),
        ("gate_exps", (EXPERTS - 1, 96, 128)),
        ("up_exps", (EXPERTS, 80, 128)),
        ("down_exps", (EXPERTS, 128, 64)),
    ],
)
def test_tensor_of_another_shape_is_named(kind, shape, qwen3moe, tmp_path):
    """The number of experts is part of the shape."""
    name = f"blk.0.ffn_{kind}.weight"
    assert_refused(rewritten(qwen3moe, tmp_path / "cut.gguf", reshape={name: shape}), name)


def test_one_tensor_per_expert_is_told_what_to_do(qwen3moe, tmp_path):
    """The layout of old converters."""
    old = {f"blk.0.ffn_gate.{expert}.weight": np.zeros((96, 128), np.float32) for expert in range(EXPERTS)}
    path = rewritten(qwen3moe, tmp_path / "old.gguf", drop=["blk.0.ffn_gate_exps.weight"], tensors=old)
    assert_refused(path, "blk.0.ffn_gate.0.weight.*convert")


def test_experts_of_a_dense_architecture_are_refused(tmp_path):
    """M10: what a file says of itself is not guessed around."""
    model = tiny_model("qwen3", tmp_path)
    assert_refused(rewritten(model, tmp_path / "more.gguf", extra={"qwen3.expert_count": 4}), "qwen3.expert_count")
    router = {"blk.0.ffn_gate_inp.weight": np.zeros((4, 192), np.float32)}
    assert_refused(rewritten(model, tmp_path / "stray.gguf", tensors=router), "ffn_gate_inp")
