"""Parameters of requests: classes of the compiled module `_rocmforge`, which `rocmforge` re-exports."""

from collections.abc import Sequence
from typing import Any, Literal, Self, final

from rocmforge.outputs import RequestOutputKind
from rocmforge.prompts import TokenIds

@final
class SamplingParams:
    """Sampling parameters and stop conditions of a request. Immutable; checked when created.

    Args:
        n: Sequences to generate; they share the prompt's computation. Sequences beyond `max_num_seqs` start as places
            become free.
        max_tokens: Maximum tokens per sequence; 256 by default. `None` continues until the context is full.
        min_tokens: Minimum number of tokens before an end token or a stop string can end a sequence.
        temperature: 0 always takes the most likely token.
        top_p: Keeps the most likely tokens whose probabilities sum up to this.
        top_k: Keeps this many of the most likely tokens; 0 and -1 keep all.
        min_p: Minimum probability of a token, relative to the most likely one.
        repetition_penalty: Above 1 makes tokens of prompt and output less likely.
        presence_penalty: Subtracted from the logit of every token of the output.
        frequency_penalty: As `presence_penalty`, times the number of occurrences.
        logit_bias: Added to logits, by token id.
        stop: Text (or texts) that ends a sequence.
        stop_token_ids: Tokens that end a sequence.
        ignore_eos: Continues after the model's end token.
        seed: The same seed gives the same text, independent of the batch. `None` and -1 choose a new seed.
        logprobs: Number of most likely tokens to report per generated token.
        prompt_logprobs: The same for the prompt's tokens.
        skip_special_tokens: Leaves control tokens out of the text.
        include_stop_str_in_output: Leaves the stop text in.
        output_kind: What each output of a stream holds: `cumulative` (all so far), `delta` (what is new) or
            `final_only` (one output, at the end); also as a `RequestOutputKind`.
        structured_outputs: A constraint on the text. A sequence ends where nothing can follow, even before
            `min_tokens`. An end token comes only where the text is complete.
        thinking_end_token_id: The token that ends the reasoning at the beginning of the text.
        thinking_token_budget: Maximum reasoning tokens. Then that token is chosen, if it has not come. Requires
            `thinking_end_token_id`.

    Raises:
        InvalidRequestError: A value is out of its range; the message names the field.
        TypeError: A value is of a wrong type.
    """

    def __new__(
        cls,
        n: int = 1,
        max_tokens: int | None = 256,
        min_tokens: int = 0,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: dict[int, float] | None = None,
        stop: str | Sequence[str] | None = None,
        stop_token_ids: TokenIds | None = None,
        ignore_eos: bool = False,
        seed: int | None = None,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        skip_special_tokens: bool = True,
        include_stop_str_in_output: bool = False,
        output_kind: Literal["cumulative", "delta", "final_only"] | RequestOutputKind = "cumulative",
        structured_outputs: StructuredOutputsParams | None = None,
        thinking_end_token_id: int | None = None,
        thinking_token_budget: int | None = None,
    ) -> Self: ...
    @property
    def n(self) -> int: ...
    @property
    def max_tokens(self) -> int | None: ...
    @property
    def min_tokens(self) -> int: ...
    @property
    def temperature(self) -> float: ...
    @property
    def top_p(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def min_p(self) -> float: ...
    @property
    def repetition_penalty(self) -> float: ...
    @property
    def presence_penalty(self) -> float: ...
    @property
    def frequency_penalty(self) -> float: ...
    @property
    def logit_bias(self) -> dict[int, float]: ...
    @property
    def stop(self) -> list[str]: ...
    @property
    def stop_token_ids(self) -> list[int]: ...
    @property
    def ignore_eos(self) -> bool: ...
    @property
    def seed(self) -> int | None: ...
    @property
    def logprobs(self) -> int | None: ...
    @property
    def prompt_logprobs(self) -> int | None: ...
    @property
    def skip_special_tokens(self) -> bool: ...
    @property
    def include_stop_str_in_output(self) -> bool: ...
    @property
    def output_kind(self) -> str: ...
    @property
    def structured_outputs(self) -> StructuredOutputsParams | None: ...
    @property
    def thinking_end_token_id(self) -> int | None: ...
    @property
    def thinking_token_budget(self) -> int | None: ...
    def replace(self, **changes: Any) -> SamplingParams:
        """Returns a copy with some parameters changed."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __reduce__(self) -> tuple[type[SamplingParams], tuple[Any, ...]]: ...
    __hash__: None  # type: ignore[assignment]

@final
class PoolingParams:
    """Parameters of a request for a vector. Immutable; checked when created.

    Args:
        pooling: `last`, `mean`, `cls`, `rank`, or `auto` for the pooling of the model file; see `LLM.embed`.
        normalize: True if the vector is divided by its length.

    Raises:
        InvalidRequestError: There is no such pooling.
    """

    def __new__(cls, pooling: str, normalize: bool) -> Self: ...
    @property
    def pooling(self) -> str: ...
    @property
    def normalize(self) -> bool: ...
    def __reduce__(self) -> tuple[type[PoolingParams], tuple[str, bool]]: ...

@final
class StructuredOutputsParams:
    """A constraint on a generated text. Give exactly one of the first five. Immutable; checked when created.

    The engine compiles a grammar for the first request that uses it, usually within milliseconds, and then keeps it.

    Args:
        json: A JSON value that this schema allows: a dictionary, JSON text, or a Pydantic class.
        regex: A text that this regular expression matches as a whole, in the syntax of Rust's crate `regex`.
        choice: One of these texts.
        grammar: A text that this grammar allows, in the syntax of Lark (the first rule is `start`) or of GBNF (`root`).
        json_object: Any JSON object.
        disable_any_whitespace: No white space between the parts of JSON.
        whitespace_pattern: A regular expression for white space between the parts of JSON. By default any is allowed.
        begin_token_id: The constraint begins after the first such token; text before it is free. So a model can reason
            before it answers.
        optional: True if the text may end without that token; otherwise it cannot end before it.

    Raises:
        InvalidRequestError: Not exactly one of the first five is given, or it is empty, too long or invalid JSON. Or a
            setting for JSON is given with another form. Or `optional` is given without `begin_token_id`.
        TypeError: A value is of a wrong type.
    """

    def __new__(
        cls,
        json: dict[str, Any] | str | type[Any] | None = None,
        regex: str | None = None,
        choice: Sequence[str] | None = None,
        grammar: str | None = None,
        json_object: bool = False,
        disable_any_whitespace: bool = False,
        whitespace_pattern: str | None = None,
        begin_token_id: int | None = None,
        optional: bool = False,
    ) -> Self: ...
    @property
    def json(self) -> str | None:
        """The schema as JSON text."""

    @property
    def regex(self) -> str | None: ...
    @property
    def choice(self) -> list[str] | None: ...
    @property
    def grammar(self) -> str | None: ...
    @property
    def json_object(self) -> bool: ...
    @property
    def disable_any_whitespace(self) -> bool: ...
    @property
    def whitespace_pattern(self) -> str | None: ...
    @property
    def begin_token_id(self) -> int | None: ...
    @property
    def optional(self) -> bool: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __reduce__(self) -> tuple[type[StructuredOutputsParams], tuple[Any, ...]]: ...
    __hash__: None  # type: ignore[assignment]
