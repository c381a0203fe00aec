"""The memory ledger against the file and the formula: nothing is loaded twice, widened, or sized by the wrong heads."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import ON_GPU
from rocmforge import LLM, OutOfMemoryError, SamplingParams
from tiny_models import NAMES, hyperparameter, metadata, rewritten, tensor_bytes, tiny_model

from gguf import GGUFWriter

F16 = 2


def sparse_model(path: Path, layers: int) -> int:
    """A model of 1.6 GB a layer, whose tensors are holes in the file; its size in bytes."""
    hidden, ffn, vocab = 8192, 28672, 64
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(vocab)
    writer.add_context_length(4096)
    writer.add_block_count(layers)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(64)
    writer.add_head_count_kv(8)
    writer.add_rope_dimension_count(128)
    writer.add_layer_norm_rms_eps(1e-5)
    total = 0

    def tensor(name: str, *shape: int) -> None:
        nonlocal total
        size = int(np.prod(shape)) * F16
        writer.add_tensor_info(f"{name}.weight", shape, np.dtype(np.float16), size)
        total += size

    tensor("token_embd", vocab, hidden)
    tensor("output", vocab, hidden)
    tensor("output_norm", hidden)
    for layer in range(layers):
        for name, *shape in (
            ("attn_norm", hidden),
            ("attn_q", hidden, hidden),
            ("attn_k", 1024, hidden),
            ("attn_v", 1024, hidden),
            ("attn_output", hidden, hidden),
            ("ffn_norm", hidden),
            ("ffn_gate", ffn, hidden),
            ("ffn_up", ffn, hidden),
            ("ffn_down", hidden, ffn),
        ):
            tensor(f"blk.{layer}.{name}", *shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        # All sizes are multiples of the alignment, so nothing lies between the tensors.
        file.truncate((path.stat().st_size + 31) // 32 * 32 + total)
    return total


@pytest.mark.parametrize("name", NAMES)
def test_kv_bytes_per_token_follow_the_formula(name, tmp_path):
    """K10, K16, K23: 2 · layers · kv heads · head size · 2 bytes for each token of the pool."""
    model = tiny_model(name, tmp_path)
    heads = hyperparameter(model, "attention.head_count")
    keys = metadata(model)
    explicit = keys.get(f"{keys['general.architecture']}.attention.key_length")
    head_size = explicit or hyperparameter(model, "embedding_length") // heads
    per_token = (
        2 * hyperparameter(model, "block_count") * hyperparameter(model, "attention.head_count_kv") * head_size * F16
    )
    with LLM(model, block_size=16, kv_cache_memory=4 << 20, num_threads=1) as llm:
        tokens = llm.stats().blocks_total * 16
        assert tokens > 0
        assert abs(llm.memory().kv_cache - tokens * per_token) <= 0.01 * tokens * per_token


def test_caches_of_integers_take_their_bits_and_scales(smollm2_path):
    """K10: for each token and head of 64 elements, and for each of K and V, 68 or 40 bytes in place of 128."""
    # Reading a real model's file takes seconds.
    keys = metadata(smollm2_path)
    heads = int(keys["llama.block_count"]) * int(keys["llama.attention.head_count_kv"])
    tokens = {}
    for dtype, head in (("f16", 64 * F16), ("int8", 64 + 4), ("int4", 2 * 20)):
        args = {"kv_cache_dtype": dtype, "kv_cache_memory": 16 << 20, "max_num_seqs": 16, "max_model_len": 512}
        with LLM(smollm2_path, device="cpu", num_threads=1, **args) as llm:
            tokens[dtype] = llm.stats().blocks_total * 16
            assert llm.memory().kv_cache == tokens[dtype] * 2 * heads * head
    assert tokens["int8"] > 1.85 * tokens["f16"]
    assert tokens["int4"] > 3.15 * tokens["f16"]


def test_a_window_takes_its_tokens_and_no_more(tmp_path, assert_nothing_left):
    """K10: gemma3, five layers of six with a window: at 32,768 tokens, what the full layer needs and the windows."""
    length, step, block, new = 32768, 256, 16, 8
    tiny = tiny_model("gemma3", tmp_path)
    model = rewritten(tiny, tmp_path / "long.gguf", replace={"gemma3.context_length": length})
    per_token = (
        2 * hyperparameter(model, "attention.head_count_kv") * hyperparameter(model, "attention.key_length") * F16
    )
    # A window moves on after the step's tokens are in, and neither begins nor ends where a block does.
    window = hyperparameter(model, "attention.sliding_window") + step + 2 * block
    with LLM(model, max_model_len=length, max_num_seqs=1, max_num_batched_tokens=step, block_size=block) as llm:
        assert llm.memory().kv_cache <= (length + 5 * window) * per_token
        prompt = [(7 * i) % 448 for i in range(length - new)]
        params = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True)
        assert len(llm.generate(prompt, params, progress=False)[0].outputs[0].token_ids) == new
        assert llm.stats().num_preemptions == 0
        assert_nothing_left(llm)


def test_kv_pool_keeps_to_its_budget(tmp_path):
    """K23: the pool takes what it was given, less than a block's worth short, never more."""
    with LLM(tiny_model("mistral", tmp_path), kv_cache_memory=3_000_000, num_threads=1) as llm:
        blocks, taken = llm.stats().blocks_total, llm.memory().kv_cache
        assert taken <= 3_000_000 * 1.01
        assert taken + taken // blocks >= 3_000_000 * 0.99


@pytest.mark.parametrize("name", NAMES)
def test_weights_take_about_the_bytes_of_the_file(name, tmp_path):
    """M15, M16, L9: weights are neither widened nor held twice; padding to whole tiles is all that is added."""
    model = tiny_model(name, tmp_path)
    with LLM(model, num_threads=1) as llm:
        # Tiles are of 16 rows, and on a GPU of 256 columns, which is more than these models have.
        padding = 2.0 if ON_GPU else 1.25
        assert 0.95 * tensor_bytes(model) <= llm.memory().weights <= padding * tensor_bytes(model)


def test_weights_of_the_real_model_take_the_bytes_of_the_file(smollm2_path):
    """M15, M16, L9: on a real file, padding is nothing; on a GPU it fills its 576 columns up to 768."""
    most = 1.35 if ON_GPU else 1.03
    stored = tensor_bytes(smollm2_path)
    with LLM(smollm2_path, max_model_len=256) as llm:
        assert 0.98 * stored <= llm.memory().weights <= most * stored


def test_model_file_is_mapped_once_at_most(tmp_path):
    """L9: however many parts of the engine look at the file, there is one mapping of it."""
    model = tiny_model("qwen2", tmp_path)
    with LLM(model, num_threads=1) as llm:
        llm.prompt_logits([1, 2, 3])
        mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(str(model))]
    assert len(mapped) <= 1


def test_scratch_does_not_grow_with_the_square_of_the_length(tmp_path):
    """M14: twice the context never takes four times the scratch; scores are not kept."""
    model = tiny_model("llama3_ropescale", tmp_path)
    scratch = []
    for length in (128, 256, 512):
        with LLM(model, max_model_len=length, max_num_batched_tokens=128, max_num_seqs=4, num_threads=1) as llm:
            scratch.append(llm.memory().scratch)
    assert scratch[2] - scratch[1] <= 2.5 * max(scratch[1] - scratch[0], 4096)
    assert scratch[2] <= 2.5 * scratch[1]


def resident() -> int:
    """Bytes of this process that are its own, not a file's."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


def test_model_larger_than_the_memory_is_refused_at_once(tmp_path):
    """A20: a file of twice the machine's memory, none of which is on disk: the error says what is needed and what is
    there, in units that can be read, and nothing was loaded before it came."""
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    installed = int(meminfo["MemTotal"].split()[0]) * 1024
    path = tmp_path / "large.gguf"
    size = sparse_model(path, layers=2 * installed // 1_600_000_000 + 1)
    assert size > 1.9 * installed
    before, started = resident(), time.monotonic()
    with pytest.raises(
        OutOfMemoryError, match=r"weights alone.* needs [\d.]+ [GT]B, .* available; use a smaller model"
    ):
        LLM(path, device="cpu", num_threads=1)
    assert time.monotonic() - started < 10
    assert resident() - before < 100_000_000


def test_limit_on_the_address_space_is_respected(smollm2_path):
    """A20: where the process may map only a little more than it has, a model is refused by name, not by an abort."""
    code = (
        "import resource, sys\n"
        "from rocmforge import LLM, OutOfMemoryError\n"
        "lines = open('/proc/self/status').read().splitlines()\n"
        "size = next(int(line.split()[1]) * 1024 for line in lines if line.startswith('VmSize'))\n"
        "resource.setrlimit(resource.RLIMIT_AS, (size + 400_000_000, -1))\n"
        "try:\n"
        "    LLM(sys.argv[1], device='cpu', num_threads=1)\n"
        "except OutOfMemoryError as error:\n"
        "    print(error)\n"
    )
    command = [sys.executable, "-c", code, str(smollm2_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "weights alone, needs" in done.stdout
    assert "MB" in done.stdout


def test_step_that_does_not_fit_is_named(tmp_path):
    """A20: activations that no machine holds are said to be what does not fit, not the KV cache."""
    named = r"activations.* needs" if ON_GPU else r"max_num_batched_tokens.* needs"
    with pytest.raises(OutOfMemoryError, match=named + r" [1-9].*, [1-9].* available; lower .*max_num_batched_tokens"):
        LLM(tiny_model("qwen2", tmp_path), max_num_batched_tokens=2**28, num_threads=1)


def test_cache_that_does_not_fit_is_refused_before_the_weights(tmp_path):
    """A20: with a `kv_cache_memory` that is not there no weight is loaded first."""
    calls = []
    with pytest.raises(OutOfMemoryError, match=r"kv_cache_memory\) needs 1000 TB, .*; lower kv_cache_memory"):
        LLM(
            tiny_model("qwen2", tmp_path),
            kv_cache_memory=10**15,
            num_threads=1,
            on_load=lambda done, _total: calls.append(done),
        )
    assert calls == []
