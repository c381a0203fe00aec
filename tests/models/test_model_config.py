"""The configuration comes from the file and from nowhere else: what is missing or contradictory is an error by name."""

import numpy as np
import pytest
from rocmforge import LLM, ModelFileError
from tiny_models import ARCHITECTURES, metadata, rewritten, tiny_model

PROMPT = [5, 17, 3, 42, 99, 7]
REQUIRED = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
)


def logits(path):
    with LLM(path, num_threads=1) as llm:
        return llm.prompt_logits(PROMPT)


def test_rewriting_alone_changes_nothing(tmp_path):
    model = tiny_model("qwen3", tmp_path)
    copy = rewritten(model, tmp_path / "copy.gguf")
    assert np.array_equal(logits(model), logits(copy))


@pytest.mark.parametrize("name", ["llama_tied", "llama3_ropescale", "mistral"])
def test_head_size_from_hidden_size_when_its_keys_are_absent(name, tmp_path):
    """M7: without `key_length` and `rope.dimension_count` the head size is hidden size / heads."""
    model = tiny_model(name, tmp_path)
    keys = ["attention.key_length", "attention.value_length", "rope.dimension_count"]
    bare = rewritten(model, tmp_path / "bare.gguf", drop=[f"llama.{key}" for key in keys])
    assert not [key for key in metadata(bare) if key.endswith(tuple(keys))]
    assert np.array_equal(logits(model), logits(bare))


def test_explicit_head_size_is_kept(tmp_path):
    """M7: qwen3 has heads of 64 although hidden size / heads is 48; without the key its tensors do not fit."""
    model = tiny_model("qwen3", tmp_path)
    bare = rewritten(model, tmp_path / "bare.gguf", drop=["qwen3.attention.key_length", "qwen3.attention.value_length"])
    assert logits(model).shape[0] == len(PROMPT)
    with pytest.raises(ModelFileError, match="attn_"):
        logits(bare)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_missing_key_is_named(name, tmp_path):
    """S25, M9: no default stands in for a key that the architecture requires."""
    model = tiny_model(name, tmp_path)
    keys = metadata(model)
    architecture = keys["general.architecture"]
    for key in REQUIRED:
        full = f"{architecture}.{key}"
        if full not in keys:
            # Norms are of one kind or the other, and experts have a width of their own.
            assert key in ("attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon", "feed_forward_length")
            continue
        if key == "feed_forward_length" and f"{architecture}.expert_feed_forward_length" in keys:
            continue
        # Converters write 0 for what the models of an architecture do not have, and both kinds of norms for LayerNorm.
        if keys[full] == 0 or (key.endswith("rms_epsilon") and f"{architecture}.attention.layer_norm_epsilon" in keys):
            continue
        with pytest.raises(ModelFileError, match=full):
            LLM(rewritten(model, tmp_path / "bare.gguf", drop=[full]))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("qwen3.embedding_length", 224),
        ("qwen3.feed_forward_length", 352),
        ("qwen3.attention.head_count", 6),
        ("qwen3.attention.head_count_kv", 1),
        ("qwen3.attention.key_length", 32),
        ("qwen3.block_count", 3),
        ("qwen3.block_count", 1),
    ],
)
def test_key_that_contradicts_the_tensors_is_an_error(key, value, tmp_path):
    """S25, M6: every tensor's shape is checked against the configuration."""
    model = tiny_model("qwen3", tmp_path)
    with pytest.raises(ModelFileError):
        LLM(rewritten(model, tmp_path / "wrong.gguf", replace={key: value}))


@pytest.mark.parametrize("architecture", ["t5", "mamba", "nonsense"])
def test_unknown_architecture_is_named(architecture, tmp_path):
    """M10: the architecture is what the file says, never guessed from the names of its tensors."""
    model = tiny_model("llama_tied", tmp_path)
    with pytest.raises(ModelFileError, match=architecture):
        LLM(rewritten(model, tmp_path / "other.gguf", replace={"general.architecture": architecture}))


@pytest.mark.parametrize("tensor", ["blk.1.attn_q.bias", "blk.0.attn_norm.weight", "output_norm.weight"])
def test_short_vector_is_named(tensor, tmp_path):
    """M13: biases and norms are checked in every layer."""
    model = tiny_model("qwen2", tmp_path)
    with pytest.raises(ModelFileError, match=tensor):
        LLM(rewritten(model, tmp_path / "short.gguf", reshape={tensor: (192,)}))
