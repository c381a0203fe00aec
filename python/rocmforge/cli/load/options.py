"""Options of `rocmforge bench --serve`, by the names of `vllm bench serve` where it has them."""

import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from rocmforge import InvalidRequestError, SamplingParams, StructuredOutputsParams
from rocmforge.cli.common import json_object, positive_numbers
from rocmforge.cli.load.report import LIMITED, METRICS

# The heading of these options in the help.
PANEL = "Options of --serve"
PICTURES = (".svg", ".png", ".pdf")
# Fields of a request that only the command may set.
_OWN = {"prompt", "messages", "model", "max_tokens", "n", "stream", "stream_options", "output_kind"}
# Parameters that apply only to some uses of the command.
_WITHOUT_SERVE = {"prompt", "decode", "batch", "reps"}
_ENGINE = {
    "model",
    "threads",
    "device",
    "batch_invariant",
    "graphs",
    "vendor_blas",
    "max_num_batched_tokens",
    "max_num_seqs",
    "speculative_config",
    "gpu_memory_limit",
    "gpu_layers",
    "cpu_experts",
    "expert_cache",
    "kv_cache_dtype",
    "compute_dtype",
}
_SERVER = {"served_model_name", "api_key"}
_FIXED_LENGTHS = {"input_len", "output_len"}


def _option(**settings: Any) -> Any:
    return typer.Option(rich_help_panel=PANEL, **settings)


def _unset(**settings: Any) -> Any:
    """An option whose default is that it is not given, which the help need not say."""
    return _option(show_default=False, **settings)


UrlOption = Annotated[str | None, _option(help="A server with the OpenAI API, such as http://127.0.0.1:8000.")]
NumPromptsOption = Annotated[int, _option(min=1, help="Requests for each row of the table.")]
NumWarmupsOption = Annotated[int, _option(min=0, help="Requests before the first row; they are not measured.")]
MaxConcurrencyOption = Annotated[
    str | None, _unset(help="Maximum concurrent requests, such as 1,8,64. Each value gives one row.")
]
RequestRateOption = Annotated[
    str,
    _option(
        help="Requests per second (Poisson arrivals), such as 1,2,4; inf sends all at once. Each value gives one row."
    ),
]
InputLenOption = Annotated[int, _option(min=1, help="Prompt length in tokens.")]
OutputLenOption = Annotated[int, _option(min=1, help="Output length in tokens.")]
DatasetPathOption = Annotated[
    Path | None,
    _unset(
        help="A JSON Lines file with input_length and output_length; lengths are drawn from it.",
        exists=True,
        dir_okay=False,
    ),
]
TemperatureOption = Annotated[float, _option(help="0 is greedy: it always takes the most likely token.")]
TopPOption = Annotated[float | None, _unset(help="Keep the most likely tokens that sum up to this probability.")]
TopKOption = Annotated[int | None, _unset(help="Keep this many of the most likely tokens.")]
MinPOption = Annotated[float | None, _unset(help="Minimum probability relative to the top token.")]
RepetitionPenaltyOption = Annotated[float | None, _unset(help="Values above 1 make earlier tokens less likely.")]
PresencePenaltyOption = Annotated[float | None, _unset(help="Subtracted from the logit of each token of the answer.")]
FrequencyPenaltyOption = Annotated[
    float | None, _unset(help="Subtracted from the logit of each token of the answer, times its number of occurrences.")
]
ExtraBodyOption = Annotated[
    dict[str, Any] | None,
    _unset(parser=json_object, metavar="JSON", help='More fields of each request, such as {"min_tokens": 16}.'),
]
PercentileMetricsOption = Annotated[
    str,
    _option(
        help="Times to report: ttft (time to first token), tpot (time per output token), itl (inter-token latency), "
        "e2el (end-to-end latency)."
    ),
]
MetricPercentilesOption = Annotated[str, _option(help="Percentiles of these times.")]
GoodputOption = Annotated[
    list[str] | None,
    _unset(
        metavar="METRIC:MS",
        help=f"Report requests per second that meet these limits in milliseconds: {', '.join(LIMITED)}. May be "
        'repeated, or list several: "ttft:500 tpot:50".',
    ),
]
PlotOption = Annotated[
    Path | None,
    _unset(
        metavar="FILE",
        help=f"Plot latency against throughput into this file, with a point for each row: {', '.join(PICTURES)}.",
    ),
]
MaxNumSeqsOption = Annotated[int | None, _unset(min=1, help="Maximum sequences in one step, without --url.")]
LoadSeedOption = Annotated[
    int,
    _option(
        min=0,
        help="Seed of prompts, arrival times and lengths. Change it for each run on a server; otherwise, the prompts "
        "are in its prefix cache.",
    ),
]
ServedModelNameOption = Annotated[str | None, _unset(help="Model name to send in each request.")]
ApiKeyOption = Annotated[str | None, _unset(help="An API key of the server.")]


def check_uses(context: typer.Context, *, serve: bool, url: bool, dataset: bool) -> None:
    """Refuses options that would have no effect.

    Args:
        context: Says which options were given.
        serve: True if many requests are measured.
        url: True if they are sent to a server.
        dataset: True if their lengths come from a file.

    Raises:
        BadParameter: There is such an option.
    """
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE":
            continue
        flag = max(parameter.opts, key=len)
        if not serve and getattr(parameter, "rich_help_panel", None) == PANEL:
            raise typer.BadParameter(f"{flag} needs --serve")
        if serve and name in _WITHOUT_SERVE:
            raise typer.BadParameter(f"{flag} does not go with --serve")
        if url and name in _ENGINE:
            raise typer.BadParameter(f"{flag} does not go with --url: the server's engine has its own settings")
        if serve and not url and name in _SERVER:
            raise typer.BadParameter(f"{flag} needs --url")
        if dataset and name in _FIXED_LENGTHS:
            raise typer.BadParameter(f"{flag} does not go with --dataset-path, which says how long requests are")


def concurrencies(text: str | None, num_prompts: int) -> list[int | None]:
    """Reads numbers of requests at once; `None` alone sets no limit.

    Raises:
        BadParameter: A part is something else, or there are fewer requests.
    """
    if text is None:
        return [None]
    numbers = positive_numbers(text, "--max-concurrency")
    if not numbers:
        raise typer.BadParameter(f"got {text!r}, expected numbers such as 1,8,64", param_hint="--max-concurrency")
    if max(numbers) > num_prompts:
        raise typer.BadParameter(
            f"got {max(numbers)} requests at once, but there are {num_prompts} in all; give more --num-prompts",
            param_hint="--max-concurrency",
        )
    return [*numbers]


def request_rates(text: str) -> list[float]:
    """Reads requests per second, above 0; infinite ones send all at once.

    Raises:
        BadParameter: A part is something else.
    """
    rates = _numbers(text)
    if not rates or any(not rate > 0 for rate in rates):
        raise typer.BadParameter(
            f"got {text!r}, expected numbers above 0 such as 1,2,4, or inf", param_hint="--request-rate"
        )
    return rates


def percentiles(text: str) -> list[float]:
    """Reads numbers from 0 to 100.

    Raises:
        BadParameter: A part is something else.
    """
    values = _numbers(text)
    if not values or any(not 0 <= value <= 100 for value in values):
        raise typer.BadParameter(
            f"got {text!r}, expected numbers from 0 to 100 such as 50,95,99", param_hint="--metric-percentiles"
        )
    return list(dict.fromkeys(values))


def _numbers(text: str) -> list[float]:
    try:
        return [float(item) for item in text.split(",") if item]
    except ValueError:
        return []


def metrics(text: str) -> list[str]:
    """Reads names of `METRICS`.

    Raises:
        BadParameter: A part is something else.
    """
    names = [item.strip() for item in text.split(",") if item.strip()]
    if not names or not set(names) <= set(METRICS):
        raise typer.BadParameter(
            f"got {text!r}, expected some of {','.join(METRICS)}", param_hint="--percentile-metrics"
        )
    return list(dict.fromkeys(names))


def limits(texts: Sequence[str] | None) -> dict[str, float]:
    """Reads the limits of goodput: milliseconds by metric.

    Raises:
        BadParameter: A part is something else, or a metric has two limits.
    """
    found: dict[str, float] = {}
    for text in " ".join(texts or ()).replace(",", " ").split():
        metric, _, number = text.partition(":")
        (limit,) = _numbers(number) or [math.nan]
        if metric not in LIMITED or not 0 <= limit < math.inf:
            raise typer.BadParameter(
                f"got {text!r}, expected a metric of {', '.join(LIMITED)} and milliseconds, such as ttft:500",
                param_hint="--goodput",
            )
        if metric in found:
            raise typer.BadParameter(f"got two limits for {metric}, expected one", param_hint="--goodput")
        found[metric] = limit
    return found


def check_picture(file: Path) -> None:
    """Finds out before the measurement whether a picture can be drawn and written.

    Raises:
        BadParameter: The library is missing, the name is none of a picture, or its folder is not there.
    """
    if file.suffix not in PICTURES:
        raise typer.BadParameter(f"got {file}, expected a name in {', '.join(PICTURES)}", param_hint="--plot")
    if not file.parent.is_dir():
        raise typer.BadParameter(f"got {file}, but there is no folder {file.parent}", param_hint="--plot")
    if importlib.util.find_spec("matplotlib") is None:
        raise typer.BadParameter(
            "drawing needs a package that is not installed: pip install 'rocmforge[plot]'", param_hint="--plot"
        )


def request_settings(sampling: Mapping[str, float | None], extra: Mapping[str, Any] | None) -> dict[str, Any]:
    """The fields that all requests of a load have.

    Args:
        sampling: How to sample, by the names of `SamplingParams`; `None` leaves a setting to the server.
        extra: Further fields, which win.

    Raises:
        BadParameter: A value is out of its range, or a field is the command's own.
    """
    given = {name: value for name, value in sampling.items() if value is not None}
    try:
        SamplingParams(**given)  # type: ignore[arg-type]
    except InvalidRequestError as error:
        raise typer.BadParameter(str(error)) from None
    if own := sorted(_OWN.intersection(extra or ())):
        raise typer.BadParameter(
            f"got {', '.join(own)}, which the command sets itself; expected other fields", param_hint="--extra-body"
        )
    # Answers have the lengths that were asked for.
    return {**given, "ignore_eos": True, **(extra or {})}


def engine_params(settings: Mapping[str, Any]) -> SamplingParams:
    """The parameters of an engine for a request with these fields.

    Raises:
        BadParameter: A field is unknown, or its value is wrong.
    """
    given = dict(settings)
    try:
        if isinstance(bias := given.get("logit_bias"), dict):
            # Keys are texts in JSON.
            given["logit_bias"] = {int(token): value for token, value in bias.items()}
        if isinstance(form := given.get("structured_outputs"), dict):
            given["structured_outputs"] = StructuredOutputsParams(**form)
        return SamplingParams(**given)
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--extra-body") from None
