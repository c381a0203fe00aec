"""A fast engine for GGUF language models on AMD GPUs and CPUs.

>>> from rocmforge import LLM, SamplingParams
>>> llm = LLM("model.gguf")
>>> llm.generate("The capital of France is", SamplingParams(temperature=0.0))[0].outputs[0].text
"""

import importlib
from typing import TYPE_CHECKING, Any

from rocmforge._rocmforge import (
    ChatPrompt,
    Image,
    SamplingParams,
    StructuredOutputsParams,
    Tokenizer,
    __version__,
    set_log_level,
)
from rocmforge.errors import (
    DeviceError,
    EngineDeadError,
    GrammarError,
    InvalidRequestError,
    ModelFileError,
    OutOfMemoryError,
    QueueFullError,
    RocmForgeError,
)

if TYPE_CHECKING:
    from rocmforge.async_llm import AsyncLLM
    from rocmforge.llm import LLM
    from rocmforge.outputs import (
        CompletionOutput,
        Logprob,
        RequestMetrics,
        RequestOutput,
        RequestOutputKind,
        RequestOutputs,
    )
    from rocmforge.stats import Histogram, MemoryUsage, RequestRecord, Stats

__all__ = [
    "LLM",
    "AsyncLLM",
    "ChatPrompt",
    "CompletionOutput",
    "DeviceError",
    "EngineDeadError",
    "GrammarError",
    "Histogram",
    "Image",
    "InvalidRequestError",
    "Logprob",
    "MemoryUsage",
    "ModelFileError",
    "OutOfMemoryError",
    "QueueFullError",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "RequestOutputs",
    "RequestRecord",
    "RocmForgeError",
    "SamplingParams",
    "Stats",
    "StructuredOutputsParams",
    "Tokenizer",
    "__version__",
    "set_log_level",
]


# Imported when they are first asked for: numpy, and asyncio, which only AsyncLLM needs, take longer than all the rest.
_MODULES = {
    "AsyncLLM": "async_llm",
    "CompletionOutput": "outputs",
    "Histogram": "stats",
    "LLM": "llm",
    "Logprob": "outputs",
    "MemoryUsage": "stats",
    "RequestMetrics": "outputs",
    "RequestOutput": "outputs",
    "RequestOutputKind": "outputs",
    "RequestOutputs": "outputs",
    "RequestRecord": "stats",
    "Stats": "stats",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
