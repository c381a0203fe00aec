"""Sampling settings of the commands where the user gives none."""

import secrets
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from rocmforge import LLM, SamplingParams

# Settings for files that recommend nothing. On SmolLM2-135M, over everyday questions, these repeat next to nothing,
# where the most likely token always, or a low temperature without a penalty, ends half of the answers in a loop.
DEFAULTS = {"temperature": 0.7, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.1}


def _unset(name: str) -> str:
    """Describes the value that `Sampling.resolve` takes where the user gives none."""
    neutral = getattr(SamplingParams(), name)
    if name in DEFAULTS:
        value = f"{DEFAULTS[name]} ({neutral:g} if the file sets other parameters)"
        return f"Default: the model file's value, otherwise {value}."
    return f"Default: the model file's value, otherwise {neutral:g}."


TemperatureOption = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        "--temp",
        help=f"0 is greedy: it always takes the most likely token. {_unset('temperature')}",
        show_default=False,
    ),
]
TopPOption = Annotated[
    float | None,
    typer.Option(
        help=f"Keep the most likely tokens that sum up to this probability. {_unset('top_p')}", show_default=False
    ),
]
TopKOption = Annotated[
    int | None,
    typer.Option(help=f"Keep this many of the most likely tokens; 0 keeps all. {_unset('top_k')}", show_default=False),
]
MinPOption = Annotated[
    float | None,
    typer.Option(help=f"Minimum probability relative to the top token. {_unset('min_p')}", show_default=False),
]
RepetitionPenaltyOption = Annotated[
    float | None,
    typer.Option(
        help=f"Values above 1 make earlier tokens less likely. {_unset('repetition_penalty')}", show_default=False
    ),
]
SeedOption = Annotated[
    int | None,
    typer.Option(help="Random seed. On a GPU, reproducible text also needs --batch-invariant.", show_default=False),
]


@dataclass(frozen=True, slots=True)
class Sampling:
    """Settings that the user gave; `None` where the model or `DEFAULTS` decide."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    seed: int | None

    def given(self) -> dict[str, Any]:
        """Returns the settings that the user gave, checked: a wrong value is found before a model is loaded."""
        given = {name: value for name in self.__slots__ if (value := getattr(self, name)) is not None}
        SamplingParams(**given)
        return given

    def resolve(self, llm: LLM) -> dict[str, Any]:
        """Returns the sampling parameters. A temperature of 0 switches off everything that was not given.

        The file's recommendation stands for itself: what its makers left out is not mixed with `DEFAULTS`.
        """
        given = {"seed": secrets.randbits(32)} | self.given()
        return given if given.get("temperature") == 0 else (llm.recommended_sampling() or DEFAULTS) | given
