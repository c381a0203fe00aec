"""Base of `LLM` and `AsyncLLM`: one loaded model and the questions that can be put to it."""

import functools
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from rocmforge._rocmforge import Engine, SamplingParams, Tokenizer
from rocmforge.arguments import check_names, one_of
from rocmforge.errors import InvalidRequestError
from rocmforge.hub import model_file
from rocmforge.isolation import load_engine
from rocmforge.notebook import table
from rocmforge.progress import byte_bar
from rocmforge.prompts import ChatOptions, Conversation, TokenIds
from rocmforge.settings import PROCESS_DEFAULTS, EngineSettings, LoadOptions, signature
from rocmforge.stats import BLOCK_DTYPE, BlockColumns, MemoryUsage, RequestRecord, ResolvedConfig, Stats

if TYPE_CHECKING:
    from rocmforge.ranking import RankPrompts


class LoadedModel:
    """A model with its KV cache, its scheduler and its thread. Safe to use from many threads.

    Args:
        model: Path of a GGUF file (the first one, for a split model), or a name: `hf:OWNER/REPO[:QUANT]` of the Hugging
            Face hub, `ollama:NAME[:TAG]` of Ollama's store. What no cache has is downloaded.
        device: `auto` takes a GPU when there is one that works, else the CPU; `cpu`; `gpu`, or `gpu:1`, the second one
            that the driver counts; `hip` or `rocm` for one of AMD's, `cuda` for one of NVIDIA's. By default a card goes
            before a GPU that is part of the processor.
        num_threads: CPU threads; by default one per core.
        max_model_len: Longest prompt plus generation, in tokens; by default what the model was made for and what fits.
        max_num_seqs: Most sequences in one step; by default 256 on a GPU and 64 on a CPU, and no more than
            `max_num_batched_tokens`.
        max_num_batched_tokens: Most tokens in one step; longer prompts are computed in chunks.
        block_size: Tokens per block of the KV cache; a multiple of 16.
        kv_cache_memory: Bytes of the KV cache; by default enough for `max_num_seqs`, within the free memory.
        kv_cache_memory_bytes: The same by vLLM's name.
        kv_cache_dtype: `f16`, `f32`, or `int8` with a scale for each token and head: about half the memory of `f16`,
            and faster at long contexts.
        enable_prefix_caching: Whether prompts with the same beginning share what was computed for it.
        max_queue_size: Most requests that may wait; more raise `QueueFullError`.
        max_num_partial_prefills: Most prompts that a step may leave half-way.
        max_long_partial_prefills: Most long prompts among them. Short prompts pass those that wait for this.
        long_prefill_token_threshold: A prompt is long while more tokens than this are to be computed of it, and leaves
            up to half of each step to short ones; by default 4 % of `max_model_len`, and no more than a step computes.
        state_snapshot_interval: Tokens of a long prompt between two snapshots of the recurrent states of a model that
            has such, in whole blocks; by default as many as have keys and values of a snapshot's size, from 256 to
            4,096. A prompt that shares a part of another begins at the last snapshot in that part.
        speculative_config: How tokens are guessed, so that a step verifies several of a sequence: `method` (`ngram`,
            from the text itself, `mtp`, by the block for it that some files have, or `draft_model`, by a small model of
            the same vocabulary, whose path or name is `model`), `num_speculative_tokens` (8, with `mtp` 3, with
            `draft_model` 4), and for `ngram` `prompt_lookup_max` (8), `prompt_lookup_min` (3). The text stays the same,
            and guesses are made where they pay; by default none are.
        retention: Seconds for which the record of a finished request is kept (see `record`), up to 10,000 records.
        seed: For requests that bring none; by default drawn from the system.
        batch_invariant: Whether results do not depend, to the last bit, on what a row was computed with; on the CPU
            that always holds, and a GPU is slower with it.
        self_test: Whether the kernel of each weight type is compared with its reference before anything is served, and
            on a GPU recorded decode steps are tested; by default it is.
        graphs: Whether decode steps on a GPU are recorded and repeated; by default unless the driver is known to repeat
            them wrongly.
        vendor_blas: Whether the vendor's matrix library serves long prompts; by default on the GPUs on which it is
            known to work.
        compute_dtype: `auto`, or `fp8`: products of many rows, of prompts and of large batches, are those of 8-bit
            floats on a GPU whose matrix library has them. Faster and less exact; a copy of the weights takes a byte for
            each number.
        cpu_isa: The instruction set of the CPU's kernels, to find out whether one is to blame; by default the best that
            the machine has. `rocmforge doctor` lists them.
        gpu_platform: `amd` or `nvidia`, where both could be used; by default AMD's if it has a device.
        gpu_library: The driver's library, in place of those that are looked for.
        cache_dir: Where compiled kernels are kept; by default `rocmforge` in the user's folder of caches.
        rocm_path: A ROCm installation, searched before any other.
        cuda_home: A CUDA toolkit, for its compiler.
        isolate: Whether the engine runs in a child process: what kills that, or keeps it from making a step, ends the
            running requests with `EngineDeadError`, and a new process takes its place. `None`: where it uses a GPU.
        watchdog: Seconds without a step after which an isolated engine that has requests is killed.
        progress: Whether a load that takes long shows a bar, on a terminal or in a notebook.
        on_load: Called during the load with what is done and with the whole, in bytes, and during a download before it;
            what it raises ends them.

    What is not given, or `None`, is as the environment says (`ROCMFORGE_DEVICE`, `ROCMFORGE_NUM_THREADS`,
    `ROCMFORGE_CACHE_DIR` and so on; docs/usage.md lists the variables), else as the engine decides.
    """

    __signature__ = signature()

    def __init__(self, model: str | os.PathLike[str], **options: Unpack[LoadOptions]) -> None:
        check_names(type(self).__name__, options, LoadedModel.__signature__)
        on_load = options.pop("on_load", None)
        theirs = options.pop("kv_cache_memory_bytes", None)
        options["kv_cache_memory"] = one_of(
            "kv_cache_memory", options.get("kv_cache_memory"), "kv_cache_memory_bytes", theirs
        )
        progress = options.pop("progress", True)
        file = model_file(model, progress=progress, on_load=on_load)
        guesses = options.get("speculative_config")
        if isinstance(guesses, dict) and isinstance(draft := guesses.get("model"), str | os.PathLike):
            draft_file = model_file(draft, progress=progress, on_load=on_load)
            options["speculative_config"] = {**guesses, "model": str(draft_file)}
        with byte_bar("Loading", enabled=progress, report=on_load) as report:
            isolate = options.pop("isolate", PROCESS_DEFAULTS["isolate"])
            watchdog = options.pop("watchdog", PROCESS_DEFAULTS["watchdog"])
            # The options that are left are settings of the engine.
            settings = cast("EngineSettings", options)
            self._engine = load_engine(file, settings, isolate=isolate, watchdog=watchdog, progress=report)
        config = self._engine.config()
        self._model = file
        self._device = self._engine.describe().partition(";")[0]
        self._max_model_len = config["max_model_len"]
        self._kv_cache_dtype = config["kv_cache_dtype"]
        self._prepare()
        # This also runs when the interpreter exits: the engine's threads end before it does.
        end = self._engine.close if isinstance(self._engine, Engine) else self._engine.discard
        self._close_at_exit = weakref.finalize(self, end)

    def _prepare(self) -> None:
        """Hook for what a subclass adds to a loaded model."""

    @property
    def model(self) -> Path:
        """The model's file."""
        return self._model

    @property
    def device(self) -> str:
        """The device in use, as `describe` begins."""
        return self._device

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus generation, in tokens."""
        return self._max_model_len

    def __repr__(self) -> str:
        fields = (
            f"device={self._device!r}, max_model_len={self._max_model_len}, kv_cache_dtype={self._kv_cache_dtype!r}"
        )
        return f"{type(self).__name__}({str(self._model)!r}, {fields})"

    def _repr_html_(self) -> str:
        rows = [
            ("model", str(self._model)),
            ("device", self._device),
            ("max_model_len", f"{self._max_model_len:,} tokens"),
            ("kv_cache_dtype", self._kv_cache_dtype),
        ]
        if self.is_closed:
            rows.append(("state", "closed"))
        else:
            now = self.stats()
            rows.append(("requests", f"{now.num_running} running, {now.num_waiting} waiting"))
            rows.append(("KV blocks", f"{now.blocks_free} free, {now.blocks_cached} cached of {now.blocks_total}"))
            if slots := now.state_slots_total:
                states = f"{now.state_slots_free} free, {now.state_slots_cached} cached of {slots}"
                rows.append(("state slots", states))
        return table(type(self).__name__, rows)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The file's tokenizer.

        Raises:
            InvalidRequestError: The file has none; prompts are token ids then, and outputs have no text.
        """
        return self._engine.tokenizer

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of a text; see `Tokenizer.encode`."""
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: TokenIds, *, skip_special: bool = False) -> str:
        """The text of token ids; see `Tokenizer.decode`."""
        return self.tokenizer.decode(ids, skip_special=skip_special)

    def apply_chat_template(self, messages: Conversation, **options: Unpack[ChatOptions]) -> str:
        """The text of a conversation; see `Tokenizer.apply_chat_template`."""
        return self.tokenizer.apply_chat_template(messages, **options)

    def get_default_sampling_params(self) -> SamplingParams:
        """Returns the parameters of requests that bring none: the file's recommendation, where it has one."""
        return SamplingParams(**self.recommended_sampling())

    def recommended_sampling(self) -> dict[str, Any]:
        """Returns the file's advice (`general.sampling.*`), by the names of `SamplingParams`; mostly there is none."""
        return self._engine.sampling_defaults()

    @functools.cached_property
    def _rank_prompts(self) -> "RankPrompts":
        # Most programs do without it, and without the modules that it needs.
        from rocmforge.ranking import RankPrompts  # noqa: PLC0415

        return RankPrompts.of_file(self._model, self.tokenizer)

    def rank_prompts(self, query: str, documents: Sequence[str]) -> list[list[int]]:
        """The prompts of a query with each document, as `score` makes them.

        They are of the file's `rerank` template, or, where it has none and the model attends in both directions, pairs
        of `Tokenizer.encode_pair`. What query and documents spell never becomes a control token.

        Raises:
            InvalidRequestError: The model does not rank, or there is no document.
        """
        if self._engine.config()["pooling"] != "rank":
            raise InvalidRequestError(
                "model: got one that does not rank, expected a file with a rank head (tensor cls.output.weight), such "
                "as a conversion of Qwen3-Reranker or of bge-reranker by llama.cpp"
            )
        return self._rank_prompts.prompts(query, documents)

    def prompt_logits(self, token_ids: TokenIds) -> NDArray[np.float32]:
        """Logits at every position, `[len(token_ids), vocab_size]`; runs alone, without the prefix cache."""
        return self._engine.prompt_logits(token_ids)

    def stats(self) -> Stats:
        """Gauges and counters as of the last step, or of the one that runs."""
        return self._engine.stats()

    def record(self, request_id: str) -> RequestRecord | None:
        """Tells how the last finished request of that id ended, also while another one of that id runs.

        `None` where none has finished, and `retention` seconds after it did.
        """
        return self._engine.record(request_id)

    def memory(self) -> MemoryUsage:
        """Bytes held on the device, by purpose; constant while the engine lives."""
        return self._engine.memory()

    def block_map(self) -> NDArray[np.void]:
        """Returns one record per block of the KV cache, of dtype `rocmforge.stats.BLOCK_DTYPE`."""
        return _records(self._engine.block_map())

    def state_map(self) -> NDArray[np.void]:
        """Returns one record per slot of recurrent states, of the same dtype; none for a model without such states.

        A slot that is cached (1) holds a snapshot, from which a prompt with the same beginning may go on.
        """
        return _records(self._engine.state_map())

    def record_kv_events(self, max_events: int) -> None:
        """Begins to log which blocks come into the prefix cache and which go; see `rocmforge.kv_events`.

        The first event says that all blocks went; so it is, too, when another process takes the place of an isolated
        engine's.

        Args:
            max_events: Most events that wait for `take_kv_events`. When more come, they are dropped, and the next call
                returns that all blocks went, and then each that is there.

        Raises:
            InvalidRequestError: The prefix cache has content (`reset_prefix_cache` empties it), or there is none.
        """
        self._engine.record_kv_events(max_events)

    def stop_kv_events(self) -> None:
        """Ends that log."""
        self._engine.stop_kv_events()

    def take_kv_events(self) -> list[tuple[Any, ...] | None]:
        """Takes the events since the last call, the earliest first; of use to `rocmforge.kv_events` alone.

        `(group, window, hash, parent, token_ids, salt, adapter)` is a block that can be hit from now on, and
        `(group, hash)` one that cannot any more; `None` says so of all. `window` is how many tokens its layers attend
        to, if it is not all, and `parent` is the hash of the block before it, if there is one.
        """
        return self._engine.take_kv_events()

    def config(self) -> ResolvedConfig:
        """The arguments as they were resolved for this model and machine; `num_blocks` counts those of all groups."""
        return self._engine.config()

    def describe(self) -> str:
        """Says which device is used, and which kernel serves which tensors."""
        return self._engine.describe()

    def close(self) -> None:
        """Aborts what runs, ends the threads and frees all memory.

        A second call does nothing, but waits for a first one that has not ended in another thread.
        """
        self._engine.close()
        self._close_at_exit.detach()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called or the engine died; in a forked child, `True`."""
        return self._engine.is_closed

    @property
    def is_restarting(self) -> bool:
        """Whether the process of an isolated engine has died and the next one is not there yet."""
        return not isinstance(self._engine, Engine) and self._engine.is_restarting

    @property
    def restarts(self) -> dict[str, int]:
        """How often the process of an isolated engine was replaced, by reason; empty for one that is not isolated.

        `abort` is SIGABRT, `crash` another fault, `device` a lost device, `hang` the watchdog, `kill` another signal,
        `exit` an end by itself, and `load` that the process before could not load the model.
        """
        return {} if isinstance(self._engine, Engine) else self._engine.restarts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _records(columns: BlockColumns) -> NDArray[np.void]:
    records = np.empty(len(columns["state"]), dtype=BLOCK_DTYPE)
    for name, column in cast("dict[str, NDArray[np.generic]]", columns).items():
        records[name] = column
    return records
