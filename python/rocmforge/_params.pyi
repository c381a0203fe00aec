"""Settings of requests: classes of the compiled half, which `_rocmforge` has and `rocmforge` shows."""

from collections.abc import Sequence
from typing import Any, Literal, Self, final

from rocmforge.outputs import RequestOutputKind
from rocmforge.prompts import TokenIds

@final
class SamplingParams:
    """Settings of how a request is sampled and when it ends. Immutable; checked when made.

    Args:
        n: Sequences to generate; they share the prompt's computation. Those that find no place among `max_num_seqs`
            start as places come free.
        max_tokens: Most tokens per sequence, 256 unless said; `None` goes on until the context is full.
        min_tokens: Before so many tokens, no end token and no stop string ends a sequence.
        temperature: 0 takes the most likely token, always.
        top_p: Keeps the most likely tokens whose probabilities sum up to this.
        top_k: Keeps so many of the most likely tokens; 0 and -1 keep all.
        min_p: Keeps tokens at least so likely, relative to the most likely one.
        repetition_penalty: Above 1 makes tokens of prompt and output less likely.
        presence_penalty: Subtracted from the logit of every token of the output.
        frequency_penalty: As `presence_penalty`, times the number of occurrences.
        logit_bias: Added to logits, by token id.
        stop: Text (or texts) that ends a sequence.
        stop_token_ids: Tokens that end a sequence.
        ignore_eos: Goes on after the model's end token.
        seed: The same seed gives the same text, whatever the request is batched with; `None` and -1 stand for a new
            one.
        logprobs: Number of most likely tokens to report per generated token.
        prompt_logprobs: The same for the prompt's tokens.
        skip_special_tokens: Leaves control tokens out of the text.
        include_stop_str_in_output: Leaves the stop text in.
        output_kind: What each output of a stream holds: `cumulative` (all so far), `delta` (what is new) or
            `final_only` (one output, at the end); also as a `RequestOutputKind`.
        structured_outputs: The form that the text is to have, as `StructuredOutputsParams`. A sequence ends where
            nothing can follow, before `min_tokens` too; an end token comes only where the text is complete.
        thinking_end_token_id: The token that ends the thoughts with which the text begins.
        thinking_token_budget: After so many tokens of thoughts that token is chosen, if it has not come by then. Given
            together with `thinking_end_token_id` only.

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
    """Settings of a request for a vector. Immutable; checked when made.

    Args:
        pooling: `last`, `mean`, `cls`, `rank` or, as the file says, `auto`; see `LLM.embed`.
        normalize: Whether the vector is divided by its length.

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
    """The form that a generated text is to have. Exactly one of the first five is given. Immutable; checked when made.

    A grammar is compiled when a request with it comes, in milliseconds as a rule, and kept for those after it.

    Args:
        json: A JSON value that this schema allows: a dictionary, or JSON text.
        regex: A text that this regular expression matches as a whole, in the syntax of Rust's crate `regex`.
        choice: One of these texts.
        grammar: A text of the language that this grammar describes, in the syntax of Lark (its first rule is
            `start`) or of GBNF (`root`).
        json_object: Any JSON object.
        disable_any_whitespace: No white space between the parts of JSON.
        whitespace_pattern: A regular expression of the white space between the parts of JSON; any unless given.
        begin_token_id: The form begins behind the first such token, and what comes before it is free. So a model thinks
            before it answers.
        optional: Whether the text may end without that token; otherwise it does not end before it.

    Raises:
        InvalidRequestError: None or several of the first five are given, one is empty, too long or no JSON, settings
            of JSON stand beside another form, or `optional` without `begin_token_id`.
        TypeError: A value is of a wrong type.
    """

    def __new__(
        cls,
        json: dict[str, Any] | str | None = None,
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
