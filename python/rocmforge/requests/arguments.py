"""Names of arguments: translations of the names that other engines use."""

import inspect
import re
from collections.abc import Collection, Iterable
from typing import TypeVar

from rocmforge.errors import InvalidRequestError

T = TypeVar("T")

# Names that vLLM, llama-cpp-python and transformers use for our arguments.
MEANT = {
    "ctx_size": "max_model_len",
    "max_seq_len": "max_model_len",
    "max_seq_length": "max_model_len",
    "n_ctx": "max_model_len",
    "n_batch": "max_num_batched_tokens",
    "n_ubatch": "max_num_batched_tokens",
    "n_parallel": "max_num_seqs",
    "max_batch_size": "max_num_seqs",
    "n_cpu_moe": "cpu_experts",
    "n_gpu_layers": "gpu_layers",
    "n_threads": "num_threads",
    "n_threads_batch": "num_threads",
    "threads": "num_threads",
    "model_path": "model",
    "pretrained_model_name_or_path": "model",
    "device_map": "device",
    "main_gpu": "device",
    "cache_type_k": "kv_cache_dtype",
    "type_k": "kv_cache_dtype",
    "use_tqdm": "progress",
    "use_tqdm_on_load": "progress",
}
ONE_DEVICE = "a model runs on one device"
INSTEAD = {
    "gpu_memory_utilization": "give the bytes of the KV cache as kv_cache_memory, or of everything as gpu_memory_limit",
    "tensor_parallel_size": ONE_DEVICE,
    "pipeline_parallel_size": ONE_DEVICE,
    "data_parallel_size": ONE_DEVICE,
    "dtype": "weights are computed with in the types that the file has",
    "quantization": "weights are computed with in the types that the file has",
    "load_format": "models are GGUF files",
    "tokenizer": "the tokenizer is the file's",
    "hf_token": "set the variable HF_TOKEN",
    "revision": "of a repository of the hub the newest state is taken",
    "chat_template": "give it to chat",
    "verbose": 'messages go to logging.getLogger("rocmforge")',
}


def check_names(caller: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raises `TypeError` for the first keyword that is not known, with the name that may be meant."""
    unknown = [name for name in given if name not in known]
    if not unknown:
        return
    # Only the message needs the import.
    import difflib  # noqa: PLC0415

    for name in unknown:
        hint = INSTEAD.get(name)
        if hint is None:
            close = difflib.get_close_matches(name, known, n=1)
            meant = MEANT.get(name)
            meant = meant if meant in known else next(iter(close), None)
            hint = f"its arguments are {', '.join(known)}" if meant is None else f"did you mean {meant}?"
        raise TypeError(f"{caller}() got an unexpected keyword argument '{name}'; {hint}")


def meanings(documented: type) -> dict[str, str]:
    """Returns the meaning of each argument of a class, from the section `Args` of its docstring."""
    arguments = inspect.cleandoc(documented.__doc__ or "").partition("Args:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", arguments, re.MULTILINE)
    return {name: re.sub(r"\s+", " ", meaning) for name, meaning in found}


def one_of(name: str, value: T | None, other_name: str, other: T | None) -> T | None:
    """The value of an argument that has two names."""
    if value is not None and other is not None:
        raise InvalidRequestError(f"{name}: got {other_name} as well, which is the same; give one of them")
    return other if value is None else value
