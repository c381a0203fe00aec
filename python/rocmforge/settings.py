"""The settings of an engine, by name and type.

The engine's `config`, in Rust, lists their names and has their defaults; `LoadedModel` says what they mean. Tests
compare the three.
"""

import inspect
import os
from typing import TypedDict, get_type_hints

from rocmforge._rocmforge import default_settings
from rocmforge.display.progress import Report


class SpeculativeConfig(TypedDict, total=False):
    """Settings of speculative decoding, by vLLM's names; each has a default."""

    method: str
    """The source of draft tokens; `draft_model` if `model` is given.

    - `ngram`: the tokens that followed an earlier occurrence of the last tokens
    - `mtp`: the block for multi-token prediction (NextN) in the model's file
    - `draft_model`: a small model with the same vocabulary"""
    model: str | os.PathLike[str]
    """For `draft_model`: the path of its GGUF file, or its name in a hub, as for the model itself."""
    num_speculative_tokens: int
    """Maximum number of draft tokens for a sequence in a step. The engine chooses the number by benefit and cost."""
    prompt_lookup_max: int
    """For `ngram`: the maximum number of last tokens that are looked up."""
    prompt_lookup_min: int
    """For `ngram`: the minimum number of last tokens that must match."""


class EngineSettings(TypedDict, total=False):
    """Settings of the engine, all optional."""

    device: str
    num_threads: int | None
    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    block_size: int
    kv_cache_memory: int | None
    gpu_memory_limit: int | None
    gpu_layers: int | None
    cpu_experts: int | None
    expert_cache: int | None
    kv_cache_dtype: str
    enable_prefix_caching: bool
    kv_offload_memory: int | None
    kv_offload_dir: str | os.PathLike[str] | None
    kv_offload_disk: int | None
    max_queue_size: int
    max_num_partial_prefills: int
    max_long_partial_prefills: int
    long_prefill_token_threshold: int | None
    state_snapshot_interval: int | None
    mmproj: str | os.PathLike[str] | None
    speculative_config: SpeculativeConfig | None
    retention: float
    seed: int | None
    batch_invariant: bool | None
    self_test: bool | None
    graphs: bool | None
    vendor_blas: bool | None
    compute_dtype: str
    cpu_isa: str | None
    gpu_platform: str | None
    gpu_library: str | os.PathLike[str] | None
    cache_dir: str | os.PathLike[str] | None
    rocm_path: str | os.PathLike[str] | None
    cuda_home: str | os.PathLike[str] | None


class ModelSettings(EngineSettings, total=False):
    """Settings of the engine and of the process that it runs in."""

    isolate: bool | None
    watchdog: float


class LoadOptions(ModelSettings, total=False):
    """Settings for loading a model: `ModelSettings` and the options of the load itself."""

    kv_cache_memory_bytes: int | None
    progress: bool
    on_load: Report | None


PROCESS_DEFAULTS: ModelSettings = {"isolate": False, "watchdog": 60.0}


def signature() -> inspect.Signature:
    """The one of `LLM` and `AsyncLLM`, in which every option has its default."""
    defaults = {
        "kv_cache_memory_bytes": None,
        "progress": True,
        "on_load": None,
        **PROCESS_DEFAULTS,
        **default_settings(),
    }
    model = inspect.Parameter("model", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=str | os.PathLike[str])
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=kind)
        for name, kind in get_type_hints(LoadOptions).items()
    ]
    return inspect.Signature([model, *options])
