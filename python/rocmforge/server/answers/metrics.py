"""Metrics for Prometheus: vLLM's names where vLLM has the same thing, ours as `rocmforge:`.

The engine's gauges and counters are read at each scrape; metrics of requests are counted as the requests end.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from rocmforge._rocmforge import SamplingParams
from rocmforge.engine import LoadedModel
from rocmforge.outputs import RequestOutput
from rocmforge.stats import Histogram as EngineHistogram
from rocmforge.stats import Stats

T = TypeVar("T")

# Bounds in seconds and in tokens, as vLLM's dashboards expect them.
FIRST_TOKEN = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
)
NEXT_TOKEN = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1,
    2.5,
    5,
    10,
    20,
    40,
)
WHOLE = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
COUNTS = (1, 2, 5, 10, 20)

# The states of a model.
STATES = ("loaded", "loading", "sleeping", "unloaded")

# Counters of the engine, named as the fields of its statistics.
COUNTERS = {
    "vllm:num_preemptions": "Preempted sequences.",
    "vllm:prefix_cache_queries": "Prompt tokens looked up in the prefix cache.",
    "vllm:prefix_cache_hits": "Prompt tokens found in the prefix cache.",
    "rocmforge:prefix_cache_evictions": "Blocks taken from the prefix cache.",
    "rocmforge:state_evictions": "Evicted snapshots of recurrent states.",
    "rocmforge:engine_steps": "Steps of the engine.",
    "rocmforge:spec_decode_num_proposed_tokens": "Draft tokens that were proposed.",
    "vllm:spec_decode_num_drafts": "Verifications of a sequence's draft tokens.",
    "vllm:spec_decode_num_draft_tokens": "Draft tokens that were verified.",
    "vllm:spec_decode_num_accepted_tokens": "Draft tokens that were accepted.",
    "rocmforge:spec_decode_num_drafter_tokens": "Tokens computed by an MTP block or a draft model.",
    "vllm:mm_cache_queries": "Images of requests.",
    "vllm:mm_cache_hits": "Images whose rows were kept from an earlier request.",
    "rocmforge:image_tokens": "Tokens of images that the encoder computed.",
    "rocmforge:image_encoder_seconds": "Time that the image encoder worked.",
    "rocmforge:expert_cache_hits": "Uses of experts in host memory that had a copy on the GPU.",
    "rocmforge:expert_cache_misses": "Uses of experts in host memory that had no copy on the GPU.",
    "rocmforge:expert_cache_copied_bytes": "Bytes copied into the expert cache on the GPU.",
    "rocmforge:kv_offload_saved": "KV blocks and snapshots copied to host memory.",
    "rocmforge:kv_offload_lost": "KV blocks and snapshots evicted before they could be copied.",
    "rocmforge:kv_offload_loaded": "KV blocks and snapshots copied back to the device.",
    "rocmforge:kv_offload_disk_written": "KV blocks and snapshots written to files.",
    "rocmforge:kv_offload_disk_read": "KV blocks and snapshots read from files.",
    "rocmforge:kv_offload_disk_dropped": "KV blocks and snapshots that were not written to files.",
    "rocmforge:kv_offload_disk_unreadable": "KV files that had vanished or were damaged.",
}
# The tiers of the KV cache below the device, and their metrics: the meaning, and the field of the statistics after
# `kv_offload_TIER_`.
TIERS = ("memory", "disk")
OF_TIERS: dict[str, tuple[str, str, type[GaugeMetricFamily] | type[CounterMetricFamily]]] = {
    "rocmforge:kv_offload_capacity_bytes": ("Bytes that a tier may hold.", "capacity", GaugeMetricFamily),
    "rocmforge:kv_offload_bytes": ("Bytes that a tier holds.", "bytes", GaugeMetricFamily),
    "rocmforge:kv_offload_contents": ("KV blocks and snapshots of the model in a tier.", "contents", GaugeMetricFamily),
    "rocmforge:kv_offload_hits": ("Prompt tokens found in a tier.", "hits", CounterMetricFamily),
}
# Histograms of the engine: their meanings, and the fields of its statistics.
HISTOGRAMS = {
    "vllm:kv_block_lifetime_seconds": ("Time from a block's allocation to its eviction.", "block_lifetime"),
    "vllm:kv_block_idle_before_evict_seconds": (
        "Time from a block's last use to its eviction.",
        "block_idle_before_evict",
    ),
    "vllm:kv_block_reuse_gap_seconds": ("Time from a block's last use to its reuse.", "block_reuse_gap"),
    "rocmforge:cancel_to_free_seconds": (
        "Time from the end of a client's request until its blocks are free.",
        "cancel_to_free",
    ),
}

# Seconds for which the ends of requests are remembered, to say how fast the queue moves.
WINDOW_SECONDS = 60.0
WINDOW_ENDS = 1000


# Every metric has these labels. A model has one engine.
LABELS = ("model_name", "engine")
ENGINE = "0"


class Metrics:
    """The metrics of a server: one series for each model.

    Args:
        states: Tells what state each model is in.
    """

    def __init__(self, states: Callable[[], Mapping[str, str]]) -> None:
        self._registry = CollectorRegistry()

        def histogram(name: str, meaning: str, bounds: tuple[float, ...]) -> Histogram:
            return Histogram(name, meaning, LABELS, buckets=bounds, registry=self._registry)

        self.first_token = histogram(
            "vllm:time_to_first_token_seconds", "Time from a request's arrival to its first token.", FIRST_TOKEN
        )
        self.next_token = histogram("vllm:inter_token_latency_seconds", "Time between two tokens.", NEXT_TOKEN)
        self.per_token = histogram(
            "vllm:request_time_per_output_token_seconds", "Mean time per token after a request's first.", NEXT_TOKEN
        )
        self.whole = histogram("vllm:e2e_request_latency_seconds", "Time from a request's arrival to its end.", WHOLE)
        self.queue = histogram("vllm:request_queue_time_seconds", "Time that a request waited in the queue.", WHOLE)
        self.prompt = histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", TOKENS)
        self.generated = histogram("vllm:request_generation_tokens", "Tokens generated for a request.", TOKENS)
        self.n = histogram("vllm:request_params_n", "The n of a request.", COUNTS)
        self.max_tokens = histogram("vllm:request_params_max_tokens", "The max_tokens of a request.", TOKENS)
        self.prompt_tokens = Counter(
            "vllm:prompt_tokens", "Prompt tokens of requests.", LABELS, registry=self._registry
        )
        self.generation_tokens = Counter(
            "vllm:generation_tokens", "Tokens generated for requests.", LABELS, registry=self._registry
        )
        self.success = Counter(
            "vllm:request_success", "Requests that ended.", [*LABELS, "finished_reason"], registry=self._registry
        )
        self.replayed_turns = Counter(
            "rocmforge:replayed_turns",
            "Generated turns replayed into prompts with their own tokens.",
            LABELS,
            registry=self._registry,
        )
        self._load_seconds = histogram(
            "rocmforge:model_load_seconds", "Time from the first request to a model until it was loaded.", WHOLE
        )
        self._load_failures = Counter(
            "rocmforge:model_load_failures", "Loads that failed.", LABELS, registry=self._registry
        )
        for name in states():
            self._load_seconds.labels(name, ENGINE)
            self._load_failures.labels(name, ENGINE)
        self._engines = _EngineCollector(states)
        self._registry.register(self._engines)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def model(self, name: str, engine: LoadedModel) -> "ModelMetrics":
        """Returns the series of a model, which continue those of an earlier engine with that name."""
        self._engines.engines[name] = engine
        return ModelMetrics(self, name, engine.stats().num_finished)

    def forget(self, name: str) -> None:
        """Stops reading a model's engine, which is about to be closed."""
        del self._engines.engines[name]

    def loaded(self, name: str, seconds: float) -> None:
        """Counts a load."""
        self._load_seconds.labels(name, ENGINE).observe(seconds)

    def load_failed(self, name: str) -> None:
        """Counts a load that failed."""
        self._load_failures.labels(name, ENGINE).inc()


class ModelMetrics:
    """The metrics of one model.

    Args:
        server: Those of all.
        name: The model's name.
        reasons: How a request may end.
    """

    def __init__(self, server: Metrics, name: str, reasons: Iterable[str]) -> None:
        self._ends: deque[float] = deque(maxlen=WINDOW_ENDS)
        labels = (name, ENGINE)
        self.first_token = server.first_token.labels(*labels)
        self.next_token = server.next_token.labels(*labels)
        self.per_token = server.per_token.labels(*labels)
        self.whole = server.whole.labels(*labels)
        self.queue = server.queue.labels(*labels)
        self.prompt = server.prompt.labels(*labels)
        self.generated = server.generated.labels(*labels)
        self.n = server.n.labels(*labels)
        self.max_tokens = server.max_tokens.labels(*labels)
        self.prompt_tokens = server.prompt_tokens.labels(*labels)
        self.generation_tokens = server.generation_tokens.labels(*labels)
        self.replayed_turns = server.replayed_turns.labels(*labels)
        self._success = {reason: server.success.labels(*labels, reason) for reason in reasons}

    def timer(self, params: SamplingParams, num_prompt_tokens: int, started: float) -> "Timer":
        """Measures a request.

        Args:
            params: Its parameters.
            num_prompt_tokens: Its prompt's length.
            started: When it arrived, by `time.monotonic`.
        """
        self.arrived(num_prompt_tokens)
        self.n.observe(params.n)
        if params.max_tokens is not None:
            self.max_tokens.observe(params.max_tokens)
        return Timer(self, num_prompt_tokens, started)

    def arrived(self, num_prompt_tokens: int) -> None:
        """Counts the prompt of a request."""
        self.prompt.observe(num_prompt_tokens)
        self.prompt_tokens.inc(num_prompt_tokens)

    def ended(self, reason: str) -> None:
        """Counts the end of a request."""
        self._success[reason].inc()
        self._ends.append(time.monotonic())

    def finished_per_second(self) -> float:
        """The recent rate of ended requests, per second; 0 without any."""
        now = time.monotonic()
        while self._ends and now - self._ends[0] > WINDOW_SECONDS:
            self._ends.popleft()
        return len(self._ends) / max(1.0, now - self._ends[0]) if self._ends else 0.0


@dataclass(slots=True)
class Timer:
    """The times of one request."""

    metrics: ModelMetrics
    num_prompt_tokens: int
    started: float
    num_generated: int = 0
    num_cached: int = 0
    miss: str | None = None
    first: float = 0.0
    last: float = 0.0
    reason: str = "abort"
    queued: float | None = None

    def record(self, output: RequestOutput) -> None:
        """Records the times of a new output."""
        now = time.monotonic()
        new = 0
        for one in output.outputs:
            new += len(one.token_ids)
            if one.finish_reason is not None:
                self.reason = one.finish_reason
        if new:
            later = new
            if not self.num_generated:
                # The engine knows when the first token was there, also of an output that comes at the end.
                waited = output.metrics.time_to_first_token or now - self.started
                self.first = self.last = self.started + waited
                self.metrics.first_token.observe(waited)
                self.queued = output.metrics.time_in_queue
                later = new - 1
            for _ in range(later):
                self.metrics.next_token.observe((now - self.last) / later)
            self.last = now
            self.num_generated += new
            self.metrics.generation_tokens.inc(new)
        self.num_cached, self.miss = output.metrics.num_cached_tokens, output.metrics.prefix_miss

    def finish(self) -> str:
        """Ends the measurement.

        Returns:
            A line for the log.
        """
        seconds = time.monotonic() - self.started
        metrics = self.metrics
        metrics.whole.observe(seconds)
        metrics.generated.observe(self.num_generated)
        if self.queued is not None:
            metrics.queue.observe(self.queued)
        if self.num_generated > 1 and self.last > self.first:
            metrics.per_token.observe((self.last - self.first) / (self.num_generated - 1))
        metrics.ended(self.reason)
        return (
            f"{self.reason}, {self.num_prompt_tokens} prompt tokens ({self.num_cached} cached), "
            f"{self.num_generated} generated, {seconds:.3f} s"
        )


class _EngineCollector(Collector):
    """Reads the engines' counters at the time of each scrape."""

    def __init__(self, states: Callable[[], Mapping[str, str]]) -> None:
        self._states = states
        self.engines: dict[str, LoadedModel] = {}
        """The engines that are loaded, by the names of their models."""

    def collect(self) -> Iterator[Metric]:
        stats = {name: engine.stats() for name, engine in self.engines.items()}

        def values(of: Callable[[Stats], T]) -> dict[str, T]:
            return {name: of(one) for name, one in stats.items()}

        yield _gauge("vllm:num_requests_running", "Running sequences.", values(lambda one: one.num_running))
        yield _gauge("vllm:num_requests_waiting", "Waiting sequences.", values(lambda one: one.num_waiting))
        yield _gauge(
            "vllm:kv_cache_usage_perc",
            "Share of the KV cache's blocks in use, from 0 to 1.",
            values(lambda one: one.blocks_owned / max(1, one.blocks_total)),
        )
        for state in ("free", "cached", "owned"):
            counts = values(attrgetter(f"blocks_{state}"))
            yield _gauge(f"rocmforge:blocks_{state}", f"Blocks of the KV cache that are {state}.", counts)
        for state in ("free", "cached", "owned"):
            counts = values(attrgetter(f"state_slots_{state}"))
            yield _gauge(f"rocmforge:state_slots_{state}", f"Slots of recurrent states that are {state}.", counts)
        for name, meaning in COUNTERS.items():
            yield _counter(name, meaning, values(attrgetter(name.partition(":")[2])))
        for name, (meaning, field) in HISTOGRAMS.items():
            yield _histogram(name, meaning, values(attrgetter(field)))
        yield self._misses(stats)
        yield self._accepted(stats)
        yield from self._tiers(stats)
        yield self._memory()
        yield self._restarts()
        yield self._config()
        yield self._state()

    def _state(self) -> Metric:
        family = GaugeMetricFamily(
            "rocmforge:model_state", "1 for the state that a model is in, else 0.", labels=[*LABELS, "state"]
        )
        for name, state in self._states().items():
            for one in STATES:
                family.add_metric([name, ENGINE, one], one == state)
        return family

    def _misses(self, stats: Mapping[str, Stats]) -> Metric:
        missed = CounterMetricFamily(
            "rocmforge:prefix_cache_missed_tokens",
            "Prompt tokens not found in the prefix cache, by reason.",
            labels=[*LABELS, "reason"],
        )
        for name, one in stats.items():
            for reason, count in one.prefix_cache_misses.items():
                missed.add_metric([name, ENGINE, reason], count)
        return missed

    def _accepted(self, stats: Mapping[str, Stats]) -> Metric:
        accepted = CounterMetricFamily(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens that were accepted, by their position in a step.",
            labels=[*LABELS, "position"],
        )
        for name, one in stats.items():
            for position, count in enumerate(one.spec_decode_num_accepted_tokens_per_pos):
                accepted.add_metric([name, ENGINE, str(position)], count)
        return accepted

    def _tiers(self, stats: Mapping[str, Stats]) -> Iterator[Metric]:
        for metric, (meaning, field, family) in OF_TIERS.items():
            tiers = family(metric, meaning, labels=[*LABELS, "tier"])
            for name, one in stats.items():
                for tier in TIERS:
                    tiers.add_metric([name, ENGINE, tier], getattr(one, f"kv_offload_{tier}_{field}"))
            yield tiers

    def _memory(self) -> Metric:
        used = GaugeMetricFamily(
            "rocmforge:memory_bytes",
            "Bytes held on the device, by purpose, and those in the host's memory (host_weights, kv_offload).",
            labels=[*LABELS, "purpose"],
        )
        for name, engine in self.engines.items():
            for purpose, size in asdict(engine.memory()).items():
                used.add_metric([name, ENGINE, purpose], size)
        return used

    def _restarts(self) -> Metric:
        restarts = CounterMetricFamily(
            "rocmforge:engine_restarts",
            "Restarts of the engine's process, by reason.",
            labels=[*LABELS, "reason"],
        )
        for name, engine in self.engines.items():
            for reason, count in engine.restarts.items():
                restarts.add_metric([name, ENGINE, reason], count)
        return restarts

    def _config(self) -> Metric:
        shown = ("block_size", "num_blocks", "kv_cache_dtype", "enable_prefix_caching")
        info = GaugeMetricFamily(
            "vllm:cache_config_info", "Configuration of the KV cache.", labels=[*LABELS, *shown, "num_gpu_blocks"]
        )
        for name, engine in self.engines.items():
            config = engine.config()
            values = [str(config[setting]) for setting in shown]  # type: ignore[literal-required]
            info.add_metric([name, ENGINE, *values, str(config["num_blocks"])], 1)
        return info


def _gauge(name: str, meaning: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, meaning, labels=LABELS)
    for model, value in values.items():
        family.add_metric([model, ENGINE], value)
    return family


def _counter(name: str, meaning: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(name, meaning, labels=LABELS)
    for model, value in values.items():
        family.add_metric([model, ENGINE], value)
    return family


def _histogram(name: str, meaning: str, histograms: Mapping[str, EngineHistogram]) -> Metric:
    family = HistogramMetricFamily(name, meaning, labels=LABELS)
    for model, histogram in histograms.items():
        buckets, below = [], 0
        for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
            below += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), float(below)))
        family.add_metric([model, ENGINE], buckets, histogram.sum)
    return family
