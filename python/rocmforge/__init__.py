"""A fast engine for GGUF language models on AMD GPUs and CPUs.

>>> from rocmforge import LLM, SamplingParams
>>> llm = LLM("model.gguf")
>>> llm.generate("The capital of France is", SamplingParams(temperature=0.0))[0].outputs[0].text
"""

from typing import TYPE_CHECKING, Any

from rocmforge._rocmforge import SamplingParams, Tokenizer, __version__
from rocmforge.errors import (
    DeviceError,
    EngineDeadError,
    InvalidRequestError,
    ModelFileError,
    OutOfMemoryError,
    QueueFullError,
    RocmForgeError,
)
from rocmforge.llm import LLM
from rocmforge.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput, RequestOutputKind
from rocmforge.stats import Histogram, MemoryUsage, RequestRecord, Stats

if TYPE_CHECKING:
    from rocmforge.async_llm import AsyncLLM

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "DeviceError",
    "EngineDeadError",
    "Histogram",
    "InvalidRequestError",
    "Logprob",
    "MemoryUsage",
    "ModelFileError",
    "OutOfMemoryError",
    "QueueFullError",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "RequestRecord",
    "RocmForgeError",
    "SamplingParams",
    "Stats",
    "Tokenizer",
    "__version__",
]


def __getattr__(name: str) -> Any:
    # asyncio costs a third of the import time, and only AsyncLLM needs it.
    if name == "AsyncLLM":
        from rocmforge.async_llm import AsyncLLM  # noqa: PLC0415

        return AsyncLLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
