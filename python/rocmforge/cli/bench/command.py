"""`rocmforge bench`: prompt, decode and batched decode, in rows that compare with llama.cpp's.

`ppN`: tokens per second of a prompt of N. `tg`, `tgB`: tokens per second of one sequence's, or of B sequences'
decode steps together, each with 32 tokens of context. `tgB @ dN`: the same after N tokens of context, a separate
prompt for each sequence, computed before. Figures are medians over the repetitions after a warm-up, with extremes.
"""

import csv
import dataclasses
import functools
import statistics
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Self

import typer

from rocmforge import LLM, InvalidRequestError, SamplingParams
from rocmforge.cli.bench.bandwidth import read_bandwidth
from rocmforge.cli.bench.serve import Loads, Plan, bench_engine, bench_server
from rocmforge.cli.common import (
    BatchInvariantOption,
    ComputeDtypeOption,
    CpuExpertsOption,
    DeviceOption,
    ExpertCacheOption,
    Format,
    GpuLayersOption,
    GpuMemoryLimitOption,
    JsonOption,
    KvCacheDtypeOption,
    ModelOption,
    SpeculativeOption,
    ThreadsOption,
    completed,
    model_path,
    positive_numbers,
    print_json,
    print_table,
)
from rocmforge.cli.load import options
from rocmforge.cli.load.lengths import Lengths
from rocmforge.cli.summary import machine_line, model_summary
from rocmforge.display.progress import bar

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocmforge.settings import EngineSettings

CONTEXT = 32
# A prompt's last block is computed again, and its last token always.
MOST_NOT_CACHED = 64
# A system that gives this thread no time lets short sequences of a small model end before the next is submitted.
MOST_ATTEMPTS = 5


def bench(
    context: typer.Context,
    model: ModelOption = None,
    *,
    prompt: Annotated[
        str, typer.Option("--prompt", "-p", help="Prompt lengths in tokens, separated by commas.")
    ] = "128,512",
    decode: Annotated[int, typer.Option("--decode", "-n", min=1, help="Decode steps.")] = 64,
    batch: Annotated[
        str, typer.Option("--batch", "-b", help="Batch sizes (concurrent sequences), separated by commas.")
    ] = "1,8,16",
    depth: Annotated[str, typer.Option("--depth", "-d", help="Tokens of context before the decode steps.")] = str(
        CONTEXT
    ),
    reps: Annotated[int, typer.Option("--reps", "-r", min=1, help="Repetitions after a warm-up.")] = 3,
    threads: ThreadsOption = None,
    device: DeviceOption = "auto",
    batch_invariant: BatchInvariantOption = None,
    graphs: Annotated[
        bool | None,
        typer.Option("--graphs/--no-graphs", help="Capture decode steps as graphs on a GPU.", show_default=False),
    ] = None,
    vendor_blas: Annotated[
        bool | None,
        typer.Option(
            "--vendor-blas/--no-vendor-blas",
            help="Use the GPU vendor's matrix library for long prompts.",
            show_default=False,
        ),
    ] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(min=1, help="Maximum tokens in one step.")] = None,
    gpu_memory_limit: GpuMemoryLimitOption = None,
    gpu_layers: GpuLayersOption = None,
    cpu_experts: CpuExpertsOption = None,
    expert_cache: ExpertCacheOption = None,
    kv_cache_dtype: KvCacheDtypeOption = "f16",
    compute_dtype: ComputeDtypeOption = "auto",
    speculative_config: SpeculativeOption = None,
    output_format: Annotated[
        Format, typer.Option("--format", help="Output format: table, md, csv or json.")
    ] = Format.TABLE,
    json_output: JsonOption = False,
    serve: Annotated[
        bool,
        typer.Option("--serve", help="Measure concurrent requests to an engine or, with --url, to a server."),
    ] = False,
    url: options.UrlOption = None,
    served_model_name: options.ServedModelNameOption = None,
    api_key: options.ApiKeyOption = None,
    max_num_seqs: options.MaxNumSeqsOption = None,
    num_prompts: options.NumPromptsOption = 100,
    num_warmups: options.NumWarmupsOption = 0,
    max_concurrency: options.MaxConcurrencyOption = None,
    request_rate: options.RequestRateOption = "inf",
    input_len: options.InputLenOption = 128,
    output_len: options.OutputLenOption = 128,
    dataset_path: options.DatasetPathOption = None,
    seed: options.LoadSeedOption = 0,
    temperature: options.TemperatureOption = 0.0,
    top_p: options.TopPOption = None,
    top_k: options.TopKOption = None,
    min_p: options.MinPOption = None,
    repetition_penalty: options.RepetitionPenaltyOption = None,
    presence_penalty: options.PresencePenaltyOption = None,
    frequency_penalty: options.FrequencyPenaltyOption = None,
    extra_body: options.ExtraBodyOption = None,
    percentile_metrics: options.PercentileMetricsOption = "ttft,tpot,itl,e2el",
    metric_percentiles: options.MetricPercentilesOption = "50,95,99",
    goodput: options.GoodputOption = None,
    plot: options.PlotOption = None,
) -> None:
    """Measure prefill and decode throughput at several batch sizes; with --serve, throughput and latency under load."""
    options.check_uses(context, serve=serve, url=url is not None, dataset=dataset_path is not None)
    output_format = Format.JSON if json_output else output_format
    engine: EngineSettings = {
        "device": device,
        "num_threads": threads,
        "max_num_batched_tokens": max_num_batched_tokens,
        "batch_invariant": batch_invariant,
        "graphs": graphs,
        "vendor_blas": vendor_blas,
        "gpu_memory_limit": gpu_memory_limit,
        "gpu_layers": gpu_layers,
        "cpu_experts": cpu_experts,
        "expert_cache": expert_cache,
        "kv_cache_dtype": kv_cache_dtype,
        "compute_dtype": compute_dtype,
        "speculative_config": speculative_config,
    }
    if serve:
        if plot is not None:
            options.check_picture(plot)
        sampling = {
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "presence_penalty": presence_penalty,
            "frequency_penalty": frequency_penalty,
        }
        loads = Loads.of(
            fixed=Lengths(input_len, output_len),
            file=dataset_path,
            num_prompts=num_prompts,
            num_warmups=num_warmups,
            concurrencies=options.concurrencies(max_concurrency, num_prompts),
            rates=options.request_rates(request_rate),
            seed=seed,
        )
        plan = Plan(
            loads=loads,
            settings=options.request_settings(sampling, extra_body),
            metrics=options.metrics(percentile_metrics),
            percentiles=options.percentiles(metric_percentiles),
            limits=options.limits(goodput),
            output_format=output_format,
            plot=plot,
        )
        if url is not None:
            bench_server(url, plan, model_name=served_model_name, api_key=api_key)
        else:
            engine["max_queue_size"] = max(num_prompts, num_warmups)
            if max_num_seqs is not None:
                engine["max_num_seqs"] = max_num_seqs
            bench_engine(model, plan, engine)
        return
    prompts, batches = positive_numbers(prompt, "--prompt"), positive_numbers(batch, "--batch")
    depths = positive_numbers(depth, "--depth")
    if batches and not depths:
        raise typer.BadParameter("an empty -d leaves no context to decode behind", param_hint="--depth")
    if not (prompts or batches):
        raise typer.BadParameter("nothing to measure: -p and -b are both empty")
    path = model_path(model)
    engine["max_model_len"] = max([n + 1 for n in prompts] + [n + decode + 1 for n in [CONTEXT, *depths]])
    engine["enable_prefix_caching"] = depths != [CONTEXT]
    # Answers stay in the cache next to the contexts; one more sequence makes room for them.
    engine["max_num_seqs"] = max([1, *batches]) + engine["enable_prefix_caching"]
    llm = LLM(path, **engine)
    results: dict[str, Speeds] = {}
    summary = model_summary(path)
    with llm, bar("Measuring", unit="runs") as draw:
        runs: list[tuple[str, Callable[[], float]]] = [
            (f"pp{n}", functools.partial(prompt_speed, llm, n)) for n in prompts
        ]
        runs += [
            (_decode_row(b, n), functools.partial(decode_speed, llm, b, decode, n)) for n in depths for b in batches
        ]
        total = (reps + 1) * len(runs)
        for index, (name, run) in enumerate(runs):
            values = []
            for repetition in range(reps + 1):
                values.append(run())
                draw(index * (reps + 1) + repetition + 1, total, "")
            results[name] = Speeds.of(values[1:])
        report = Report(
            machine=machine_line(),
            engine=llm.describe(),
            model=summary.line(),
            bandwidth=None,
            bandwidth_share=None,
            results=results,
        )
        num_threads = llm.config()["num_threads"]
        on_cpu = llm.describe().startswith("CPU")
    # The engine has ended by now: its threads wait for work for a moment, which would disturb the measurement.
    if on_cpu and "tg" in results and summary.bytes_per_token is not None:
        report.bandwidth = read_bandwidth(num_threads)
        report.bandwidth_share = results["tg"].median * summary.bytes_per_token / report.bandwidth
    _print(report, output_format)


@dataclass(frozen=True, slots=True)
class Speeds:
    """Tokens per second over the repetitions."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: list[float]) -> Self:
        """Rounded: more digits than these are noise."""
        return cls(*(round(value, 2) for value in (statistics.median(values), min(values), max(values))))


@dataclass(slots=True)
class Report:
    """The results with all that they were measured on: enough to compare with, or to put into an issue."""

    machine: str
    engine: str
    model: str
    bandwidth: float | None
    """Bytes of memory per second that the CPU reads, measured here; `None` on a GPU."""
    bandwidth_share: float | None
    """The share of it that decoding one sequence took: the weights' bytes times its tokens per second."""
    results: dict[str, Speeds]

    def lines(self) -> list[str]:
        """The lines above the table."""
        lines = [f"machine: {self.machine}", f"engine: {self.engine}", f"model: {self.model}"]
        if self.bandwidth is not None and self.bandwidth_share is not None:
            lines.append(
                f"memory: {self.bandwidth / 1e9:.1f} GB/s read, measured; tg takes {100 * self.bandwidth_share:.0f} %"
            )
        return lines


def _prompt(length: int) -> list[int]:
    return [3 + i % 250 for i in range(length)]


def prompt_speed(llm: LLM, length: int) -> float:
    """Tokens per second of a prompt, in a request for one token."""
    prompt = _prompt(length)
    llm.reset_prefix_cache()
    started = time.perf_counter()
    completed(llm.generate(prompt, SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True), progress=False))
    return length / (time.perf_counter() - started)


def decode_speed(llm: LLM, num_sequences: int, steps: int, depth: int = CONTEXT) -> float:
    """Returns tokens per second from the time when every sequence has its first token to the end of the last one.

    The engine may take up the first sequence a step before the others. The token that it makes while they compute
    their prompts is then not counted. Separate requests compute longer contexts than the shortest one before, so
    that no sequence decodes next to prompts.

    Raises:
        InvalidRequestError: The KV cache has no room for all contexts, or sequences end before others begin.
    """
    params = SamplingParams(max_tokens=steps + 1, temperature=0.0, ignore_eos=True)
    prompts = [_prompt(depth)] * num_sequences
    if depth != CONTEXT:
        # Unique tokens come first, so that no sequence reads the blocks of another.
        own = [[3 + sequence % 250, 3 + sequence // 250] for sequence in range(num_sequences)]
        prompts = [[*first, *_prompt(depth)][:depth] for first in own]
        once = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
        completed(llm.generate(prompts, once, progress=False))
    for _ in range(MOST_ATTEMPTS):
        outputs = completed(llm.generate(prompts, params, progress=False))
        metrics = [output.metrics for output in outputs]
        first = [m.arrival_time + (m.time_to_first_token or 0.0) for m in metrics]
        last = [m.arrival_time + (m.total_time or 0.0) for m in metrics]
        start, end = max(first), max(last)
        missing = sum(depth - output.num_cached_tokens > MOST_NOT_CACHED for output in outputs)
        if missing or min(last) >= start:
            break
    if missing or min(last) < start:
        raise InvalidRequestError(
            f"the KV cache has no room for {num_sequences} contexts of {depth} tokens: {missing} were computed again, "
            "or not all decoded together; take fewer sequences (-b), shorter contexts (-d) or --kv-cache-dtype int8"
        )
    step = (end - start) / steps
    early = sum(1 for time_ in first if start - time_ > step / 2)
    return (num_sequences * steps - early) / (end - start)


def _decode_row(num_sequences: int, depth: int) -> str:
    row = "tg" if num_sequences == 1 else f"tg{num_sequences}"
    return row if depth == CONTEXT else f"{row} @ d{depth}"


def _print(report: Report, output_format: Format) -> None:
    rows = [(name, speeds.median, speeds.min, speeds.max) for name, speeds in report.results.items()]
    match output_format:
        case Format.JSON:
            print_json(dataclasses.asdict(report))
        case Format.CSV:
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow(["test", "tokens_per_second", "min", "max"])
            writer.writerows([name, *(f"{speed:.2f}" for speed in speeds)] for name, *speeds in rows)
        case Format.MD:
            typer.echo("".join(f"{line}\n\n" for line in report.lines()), nl=False)
            typer.echo("| test | tok/s | min | max |\n|---|---:|---:|---:|")
            for name, *speeds in rows:
                typer.echo(f"| {name} | {' | '.join(f'{speed:.1f}' for speed in speeds)} |")
        case Format.TABLE:
            typer.echo("\n".join(report.lines()), err=not sys.stdout.isatty())
            cells = [[name, *(f"{speed:.1f}" for speed in speeds)] for name, *speeds in rows]
            print_table("", ["test", "tok/s", "min", "max"], cells)
