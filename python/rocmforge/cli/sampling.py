"""How the commands sample where the user does not say."""

import secrets
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from rocmforge import LLM, SamplingParams

TemperatureOption = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        "--temp",
        help="0 takes the most likely token, always. Unset: the file's, else 0.7.",
        show_default=False,
    ),
]
TopPOption = Annotated[
    float | None,
    typer.Option(
        help="Keep the most likely tokens that sum up to this probability. Unset: the file's, else 0.95.",
        show_default=False,
    ),
]
TopKOption = Annotated[
    int | None,
    typer.Option(help="Keep so many of the most likely tokens; 0 keeps all. Unset: the file's.", show_default=False),
]
MinPOption = Annotated[
    float | None,
    typer.Option(
        help="Keep tokens at least so likely, relative to the likeliest. Unset: the file's, else 0.05.",
        show_default=False,
    ),
]
RepetitionPenaltyOption = Annotated[
    float | None,
    typer.Option(
        help="Above 1 makes tokens that occurred less likely. Unset: the file's, else 1.1.", show_default=False
    ),
]
SeedOption = Annotated[int | None, typer.Option(help="The same seed gives the same text.", show_default=False)]

# For files that recommend nothing. On SmolLM2-135M, over everyday questions, these repeat next to nothing, where the
# most likely token always, or a low temperature without a penalty, ends half of the answers in a loop.
DEFAULTS = {"temperature": 0.7, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.1}


@dataclass(frozen=True, slots=True)
class Sampling:
    """What the user asked for; `None` for what the model or `DEFAULTS` decide."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    seed: int | None

    def given(self) -> dict[str, Any]:
        """What the user asked for, checked: a wrong value is found before a model is loaded."""
        given = {name: value for name in self.__slots__ if (value := getattr(self, name)) is not None}
        SamplingParams(**given)
        return given

    def resolve(self, llm: LLM) -> dict[str, Any]:
        """What is sampled with. A temperature of 0 switches off all that was not asked for.

        The file's recommendation stands for itself: what its makers left out is not mixed with `DEFAULTS`.
        """
        given = {"seed": secrets.randbits(32)} | self.given()
        return given if given.get("temperature") == 0 else (llm.recommended_sampling() or DEFAULTS) | given
