"""Base of `LLM` and `AsyncLLM`: one loaded model, its settings and its state."""

import functools
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from rocmforge._rocmforge import ChatPrompt, Engine, Image, SamplingParams, Tokenizer
from rocmforge.display.notebook import table
from rocmforge.display.progress import byte_bar
from rocmforge.errors import InvalidRequestError
from rocmforge.hub import model_file
from rocmforge.images import AnyImage, as_image, with_images
from rocmforge.isolation import load_engine
from rocmforge.prompts import AnyPrompt, ChatOptions, Conversation, TokenIds, plain_prompt
from rocmforge.replies import ReplyFormats
from rocmforge.requests.arguments import check_names, one_of
from rocmforge.requests.submission import check_reads_images, placed
from rocmforge.settings import PROCESS_DEFAULTS, EngineSettings, LoadOptions, signature
from rocmforge.stats import BLOCK_DTYPE, BlockColumns, MemoryUsage, RequestRecord, ResolvedConfig, Stats

if TYPE_CHECKING:
    from rocmforge.requests.ranking import RankPrompts


class LoadedModel:
    """A model with its KV cache, scheduler and thread. Thread-safe.

    Args:
        model: Path of a GGUF file (the first one, for a split model), or a name: `hf:OWNER/REPO[:QUANT]` of the Hugging
            Face hub, `ollama:NAME[:TAG]` of Ollama's store. A hub model that is not cached is downloaded.
        device: `auto` (a working GPU, otherwise the CPU), `cpu`, `gpu`, or `gpu:1` (the driver's second GPU). `hip` and
            `rocm` choose an AMD GPU, `cuda` an NVIDIA GPU. By default, discrete cards come before integrated GPUs.
        num_threads: CPU threads; by default one per available logical CPU. For experts in host memory (CPU offload),
            the default is one less than the physical cores.
        max_model_len: Context length: maximum tokens of prompt and answer. By default that of the model, or less if
            memory is short.
        max_num_seqs: Maximum sequences in one step, at most `max_num_batched_tokens`; by default 256 on a GPU and 64 on
            a CPU.
        max_num_batched_tokens: Maximum tokens in one step; longer prompts are computed in chunks.
        block_size: Tokens per block of the KV cache; a multiple of 16.
        kv_cache_memory: Size of the KV cache in bytes; by default enough for `max_num_seqs`, within the free memory.
        kv_cache_memory_bytes: The same by vLLM's name.
        gpu_memory_limit: Maximum GPU memory in bytes; by default all free memory. Weights that do not fit stay in
            host memory (CPU offload). The CPU computes the experts among them, and the GPU reads the others over PCIe.
        gpu_layers: Number of first layers kept entirely in GPU memory; by default as many as fit.
        cpu_experts: Number of last layers whose experts stay in host memory; by default as few as possible.
        expert_cache: Maximum GPU memory in bytes for copies of the most used experts in host memory. The GPU computes
            them, and the CPU the others. By default half of the memory left free; 0 turns the cache off.
        kv_cache_dtype: `f16`, `f32`, `int8` or `int4`. `int8` has a scale for each token and head: about half the
            memory of `f16`, and faster at long contexts. `int4` takes about a third, is less exact, and needs the CPU.
        enable_prefix_caching: Reuse the KV cache of prompts with the same beginning.
        kv_offload_memory: Host memory in bytes for evicted KV blocks and state snapshots (KV offloading); by default 0,
            or 1 GiB with `kv_offload_dir`.
        kv_offload_dir: Folder for KV blocks and state snapshots that leave host memory. When the engine closes, it
            writes all of them there. A later engine with the same model reuses the files. By default, nothing is
            written.
        kv_offload_disk: Maximum size of `kv_offload_dir` in bytes; by default 16 GiB.
        max_queue_size: Maximum waiting requests; further ones are refused (`QueueFullError`; status 429 of a server).
        max_num_partial_prefills: Maximum prompts that a step may leave partly computed.
        max_long_partial_prefills: Maximum long prompts among the partly computed prompts of a step. Short prompts may
            overtake long ones that wait.
        long_prefill_token_threshold: A prompt is long if more tokens than this remain to be computed; by default 4 % of
            `max_model_len`. Long prompts leave up to half of each step to short ones.
        state_snapshot_interval: Tokens between two snapshots of recurrent states in a long prompt, in whole blocks. A
            prompt that shares a prefix with another resumes at the last snapshot in that prefix. By default, the
            number of KV cache tokens that equals one snapshot in size, from 256 to 4,096.
        speculative_config: Speculative decoding; by default off. `method` is `ngram` (text that repeats), `mtp` (the
            file's MTP block) or `draft_model` (a small model, given as `model`). Default `num_speculative_tokens`:
            `ngram` 8, `mtp` 3, `draft_model` 4. `ngram` also has `prompt_lookup_max` (8) and `prompt_lookup_min` (3).
        mmproj: Path of the model's image encoder (`mmproj-*.gguf`), or `none`. Default: a matching file next to the
            model. Without one, the model accepts text only.
        retention: Seconds for which the status of a finished request can be queried, for up to 10,000 requests.
        seed: Seed of the engine, for requests without one; by default random.
        batch_invariant: Make results independent of the batch, to the last bit. CPU results always are; on a GPU, this
            is slower.
        self_test: Test the kernel of each weight type before serving, and captured graphs on a GPU; on by default.
        graphs: Use graph capture for decode steps on a GPU; by default on unless the driver is known to replay graphs
            wrongly.
        vendor_blas: Use the vendor's matrix library for long prompts; by default on GPUs where it is known to work.
        compute_dtype: `auto`, or `fp8`: large matrix products in FP8, on a GPU whose matrix library supports it. Faster
            and less exact; needs one more byte for each weight of these matrices.
        cpu_isa: Instruction set of the CPU kernels, for diagnosis; by default the best one. `rocmforge doctor` lists
            them.
        gpu_platform: `amd` or `nvidia`, if both are present; by default AMD if it has a device.
        gpu_library: Path of the GPU driver library; replaces the search for it.
        cache_dir: Folder for compiled kernels; by default `rocmforge` in the user's cache folder.
        rocm_path: A ROCm installation, searched before any other.
        cuda_home: Path of a CUDA toolkit, which is searched for NVRTC and the matrix library.
        isolate: Run the engine in a child process. If it crashes or hangs, running requests end with `EngineDeadError`
            and a new process starts. By default, a server does so if it uses a GPU.
        watchdog: Kill an isolated engine that has requests but finishes no step for this many seconds.
        progress: Show a progress bar of a long load, on a terminal or in a notebook.
        on_load: Called during download and load with the bytes done and the total; an exception that it raises ends
            them.

    Arguments that are missing or `None` are set by the environment (`ROCMFORGE_DEVICE` and others; docs/usage.md lists
    the variables), otherwise by the engine.
    """

    __signature__ = signature()

    def __init__(self, model: str | os.PathLike[str], **options: Unpack[LoadOptions]) -> None:
        check_names(type(self).__name__, options, LoadedModel.__signature__.parameters)
        on_load = options.pop("on_load", None)
        theirs = options.pop("kv_cache_memory_bytes", None)
        options["kv_cache_memory"] = one_of(
            "kv_cache_memory", options.get("kv_cache_memory"), "kv_cache_memory_bytes", theirs
        )
        progress = options.pop("progress", True)
        file = model_file(model, progress=progress, on_load=on_load)
        speculation = options.get("speculative_config")
        if isinstance(speculation, dict) and isinstance(draft := speculation.get("model"), str | os.PathLike):
            draft_file = model_file(draft, progress=progress, on_load=on_load)
            options["speculative_config"] = {**speculation, "model": str(draft_file)}
        if (encoder := options.get("mmproj")) is not None:
            options["mmproj"] = os.fspath(encoder)
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
        end = self._engine.close if isinstance(self._engine, Engine) else self._engine.end
        self._close_at_exit = weakref.finalize(self, end)

    def _prepare(self) -> None:
        """Hook for what a subclass adds to a loaded model."""

    @property
    def model(self) -> Path:
        """The model's file."""
        return self._model

    @property
    def mmproj(self) -> Path | None:
        """The file of the image encoder; `None` for a text-only model."""
        file = self._engine.mmproj
        return None if file is None else Path(file)

    @property
    def device(self) -> str:
        """The device in use: the beginning of `describe()`."""
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
            InvalidRequestError: The file has no tokenizer. Prompts are then token ids, and outputs have no text.
        """
        return self._engine.tokenizer

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of a text; see `Tokenizer.encode`."""
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: TokenIds, *, skip_special: bool = False) -> str:
        """The text of token ids; see `Tokenizer.decode`."""
        return self.tokenizer.decode(ids, skip_special=skip_special)

    def apply_chat_template(self, messages: Conversation, **options: Unpack[ChatOptions]) -> str:
        """The text of a conversation; see `Tokenizer.apply_chat_template`. Images become placeholders."""
        return self.tokenizer.apply_chat_template(with_images(messages)[0], **options)

    def prompt_token_ids(self, prompt: AnyPrompt) -> list[int]:
        """Returns the token ids of a prompt as the engine computes it, with all tokens of each image.

        Raises:
            InvalidRequestError: The prompt cannot be served.
        """
        plain = plain_prompt(prompt)
        content = placed(self._engine, plain.content) if plain.images else plain.content
        return self._engine.prepare(content, SamplingParams(max_tokens=1), plain.images)

    def image_tokens(self, image: AnyImage) -> int:
        """Returns the number of tokens that an image takes in a prompt, without control tokens around it.

        Raises:
            InvalidRequestError: The model accepts text only, or it refuses the shape of the image.
        """
        check_reads_images(self._engine)
        return self._engine.image_tokens(as_image(image))

    def _encode_chat(self, messages: Conversation, options: ChatOptions) -> tuple[ChatPrompt, tuple[Image, ...]]:
        """Returns a conversation as a prompt with placeholders, and the images for these."""
        messages, images = with_images(messages)
        if images:
            check_reads_images(self._engine)
        return self.tokenizer.encode_chat(messages, **options), images

    def get_default_sampling_params(self) -> SamplingParams:
        """Returns the parameters of requests without any: the file's recommendation, if it has one."""
        return SamplingParams(**self.recommended_sampling())

    def recommended_sampling(self) -> dict[str, Any]:
        """Returns the file's recommendations (`general.sampling.*`), by the names of `SamplingParams`; often empty."""
        return self._engine.sampling_defaults()

    @functools.cached_property
    def _reply_formats(self) -> ReplyFormats:
        return ReplyFormats(self.tokenizer)

    @functools.cached_property
    def _rank_prompts(self) -> "RankPrompts":
        # Most programs do without it, and without the modules that it needs.
        from rocmforge.requests.ranking import RankPrompts  # noqa: PLC0415

        return RankPrompts.of_file(self._model, self.tokenizer)

    def rank_prompts(self, query: str, documents: Sequence[str]) -> list[list[int]]:
        """The prompts of a query with each document, as `score` makes them.

        They follow the file's `rerank` template. Without one, prompts of a bidirectional encoder are pairs from
        `Tokenizer.encode_pair`. Text of the query and the documents never becomes control tokens.

        Raises:
            InvalidRequestError: The model does not rank, or there is no document.
        """
        if self._engine.config()["pooling"] != "rank":
            raise InvalidRequestError(
                "model: got one that does not rank, expected a file with a rank head (tensor cls.output.weight). "
                "Examples are llama.cpp's conversions of Qwen3-Reranker and bge-reranker"
            )
        return self._rank_prompts.prompts(query, documents)

    def prompt_logits(self, token_ids: AnyPrompt) -> NDArray[np.float32]:
        """Logits at every position, `[len(token_ids), vocab_size]`; runs alone, without the prefix cache.

        Args:
            token_ids: Token ids, or a text, as for `generate`.
        """
        plain = plain_prompt(token_ids).without_images()
        return self._engine.prompt_logits(self.tokenizer.encode(plain) if isinstance(plain, str) else plain)

    def stats(self) -> Stats:
        """Gauges and counters as of the last step, or of the current one."""
        return self._engine.stats()

    def record(self, request_id: str) -> RequestRecord | None:
        """Returns how the last finished request with this id ended, even while another request with this id runs.

        `None` if no such request has finished, or if it finished more than `retention` seconds ago.
        """
        return self._engine.record(request_id)

    def memory(self) -> MemoryUsage:
        """Bytes held on the device, by purpose, and weights in the host's memory; constant while the engine lives."""
        return self._engine.memory()

    def block_map(self) -> NDArray[np.void]:
        """Returns one record per block of the KV cache, of dtype `rocmforge.stats.BLOCK_DTYPE`."""
        return _records(self._engine.block_map())

    def state_map(self) -> NDArray[np.void]:
        """Returns one record per slot of recurrent states, of the same dtype; none for a model without such states.

        A cached slot (1) holds a snapshot, from which a prompt with the same beginning can continue.
        """
        return _records(self._engine.state_map())

    def record_kv_events(self, max_events: int) -> None:
        """Starts to log the blocks that enter or leave the prefix cache; see `rocmforge.kv_events`.

        The first event says that all blocks are gone. The same event follows when a new process replaces that of an
        isolated engine.

        Args:
            max_events: Maximum events that wait for `take_kv_events`. Beyond it they are dropped. The next call then
                reports that all blocks are gone, followed by each block in the cache.

        Raises:
            InvalidRequestError: The prefix cache has content (`reset_prefix_cache` empties it), or there is none.
        """
        self._engine.record_kv_events(max_events)

    def stop_kv_events(self) -> None:
        """Ends that log."""
        self._engine.stop_kv_events()

    def take_kv_events(self) -> list[tuple[Any, ...] | None]:
        """Returns the events since the last call, the earliest first; only for `rocmforge.kv_events`.

        `(group, window, hash, parent, token_ids, salt, adapter)` is a block that entered the cache, and
        `(group, hash)` one that left it; `None` means that all blocks are gone. `window` is the size of its layers'
        sliding window, if any. `parent` is the hash of the block before it, if any.
        """
        return self._engine.take_kv_events()

    def config(self) -> ResolvedConfig:
        """The arguments as they were resolved for this model and machine; `num_blocks` counts those of all groups."""
        return self._engine.config()

    def describe(self) -> str:
        """Describes the device, and the kernels that serve the tensors."""
        return self._engine.describe()

    def close(self) -> None:
        """Aborts what runs, ends the threads and frees all memory.

        A second call does nothing, but waits for a first one that has not ended in another thread.
        """
        self._engine.close()
        self._close_at_exit.detach()

    @property
    def is_closed(self) -> bool:
        """True if `close` was called or the engine died; also in a forked child."""
        return self._engine.is_closed

    @property
    def is_restarting(self) -> bool:
        """True if the process of an isolated engine has died and the next one is not ready."""
        return not isinstance(self._engine, Engine) and self._engine.is_restarting

    @property
    def restarts(self) -> dict[str, int]:
        """How often the process of an isolated engine was replaced, by reason; empty for one that is not isolated.

        `abort` is SIGABRT, `crash` another fault, `device` a lost device, `hang` the watchdog, and `kill` another
        signal. After `exit` the process ended by itself, and after `load` it could not load the model.
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
