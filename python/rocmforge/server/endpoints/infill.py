"""Fill-in-the-middle prompts, for models that were trained for them, and llama.cpp's `/infill`."""

import re
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from fastapi import APIRouter, Request
from pydantic import AliasChoices, Field
from starlette.responses import JSONResponse, Response

from rocmforge.executors import to_thread
from rocmforge.server.answers.generation import Generations
from rocmforge.server.answers.replies import check_ending
from rocmforge.server.bodies import Body, Text
from rocmforge.server.errors import ApiError
from rocmforge.server.http.reading import BodyRoute
from rocmforge.server.http.streaming import unless_gone
from rocmforge.server.lengths import check_length
from rocmforge.server.requests import MODEL_MEANING, GenerationBody, Served
from rocmforge.server.service import Service

router = APIRouter(tags=["Infill"], route_class=BodyRoute)

# Tokens before the prefix, before the suffix, and before the answer.
_MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<\uff5cfim▁begin\uff5c>", "<\uff5cfim▁hole\uff5c>", "<\uff5cfim▁end\uff5c>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
)
# Tokens before the name of a repository, and before the name of each of its files.
_FILE_MARKS = (("<|repo_name|>", "<|file_sep|>"), ("<repo_name>", "<file_sep>"))


class InfillChunk(Body):
    """A piece of another file."""

    ignored: ClassVar[Mapping[str, str]] = {"time": "Pieces are taken in their order."}

    text: str
    filename: str = "tmp"


class InfillRequest(GenerationBody):
    """The body of `/infill`."""

    ignored: ClassVar[Mapping[str, str]] = {
        **GenerationBody.ignored,
        "samplers": "Sampling parameters apply in one order.",
        "t_max_prompt_ms": "llama.cpp itself does not read it.",
    }

    model: str | None = Field(None, description=MODEL_MEANING)
    input_prefix: str = Field("", description="The text before the answer.")
    input_suffix: str = Field("", description="The text after the answer.")
    input_extra: list[InfillChunk] | None = Field(
        None, description="Pieces of other files, `{text, filename}`. If they do not fit, the first ones are left out."
    )
    prompt: str = Field("", description="The beginning of the answer.")
    n_predict: int = Field(
        -1, ge=-1, description="Maximum tokens; -1: as many as fit; 0: only computes the prompt, for the prefix cache."
    )
    n_indent: int = Field(0, ge=0, description="Ends the answer before a line with less white space at its beginning.")
    t_max_predict_ms: float = Field(
        0,
        ge=0,
        description="Milliseconds of generation, after which the answer ends with its last whole line; 0: never.",
    )
    n: Literal[1] = Field(default=1, description="An answer has one sequence.")
    repetition_penalty: float | None = Field(
        None,
        validation_alias=AliasChoices("repeat_penalty", "repetition_penalty"),
        description="Also as `repetition_penalty`.",
    )
    stream: Literal[False] = Field(default=False, description="The answer comes as a whole.")
    response_fields: list[Text] | None = Field(
        None, description="Fields of the answer to give back; `timings/prompt_n` is a field within another."
    )


@router.post("/infill")
async def infill(body: InfillRequest, request: Request, models: Served) -> Response:
    """Fills in the text between two others, in llama.cpp's format."""
    # Editors send an empty name if their user has set none.
    service = await models.use(body.model or None)
    return await unless_gone(request, _filled(body, request, service))


async def _filled(body: InfillRequest, request: Request, service: Service) -> Response:
    ids = await to_thread(_prompt, service, body)
    # The engine generates at least one token; `n_predict: 0` leaves it out of the answer.
    limit = None if body.n_predict < 0 else max(1, body.n_predict)
    params = body.sampling(service, max_tokens=limit, output_kind="delta")
    answer = _Answer(body, body.model or service.names[0])
    async with await service.submit([ids], params, body.call(request, f"infill-{uuid.uuid4().hex}")) as generations:
        await answer.read(generations)
    return JSONResponse(answer.value())


class _Answer:
    """Collects the answer to a request."""

    def __init__(self, body: InfillRequest, model: str) -> None:
        self._body = body
        self._model = model
        self._started = time.monotonic()
        self._first: float | None = None
        self._text = ""
        self._num_tokens = 0
        self._num_prompt = self._num_cached = 0
        self._queued = 0.0
        self._stop_type, self._stopping_word = "limit", ""

    async def read(self, generations: Generations) -> None:
        """Reads the output until its end, or until the client's limits are reached.

        Raises:
            ApiError: The request failed.
        """
        async for _, output in generations.merged():
            (one,) = output.outputs
            check_ending(one)
            self._first = self._first or time.monotonic()
            self._num_prompt, self._num_cached = len(output.prompt_token_ids), output.num_cached_tokens
            self._queued = output.metrics.time_in_queue or 0.0
            if self._body.n_predict == 0:
                return
            self._text += one.text
            self._num_tokens += len(one.token_ids)
            if self._is_over():
                return
            if one.finish_reason == "stop":
                is_word = isinstance(one.stop_reason, str)
                self._stop_type, self._stopping_word = ("word", str(one.stop_reason)) if is_word else ("eos", "")

    def _is_over(self) -> bool:
        """True if a limit of the client ends the text here; the text after the limit is cut."""
        indent, most = self._body.n_indent, self._body.t_max_predict_ms
        if indent and (found := re.search(rf"\n(?=[ \t]{{0,{indent - 1}}}[^\s])", self._text)):
            self._text = self._text[: found.start()]
            return True
        late = most > 0 and (time.monotonic() - (self._first or 0.0)) * 1000 > most
        if late and "\n" in self._text:
            self._text = self._text[: self._text.rindex("\n")]
            return True
        return False

    def value(self) -> dict[str, Any]:
        """Returns the answer, or the fields of it that the client wants."""
        ended = time.monotonic()
        first = ended if self._first is None else self._first
        computed = self._num_prompt - self._num_cached
        value = {
            "index": 0,
            "content": self._text,
            "model": self._model,
            "stop": True,
            "stop_type": self._stop_type,
            "stopping_word": self._stopping_word,
            "has_new_line": "\n" in self._text,
            "truncated": False,
            "tokens_predicted": self._num_tokens,
            "tokens_evaluated": self._num_prompt,
            "tokens_cached": self._num_cached,
            "timings": {
                **_pace("prompt", computed, max(0.0, first - self._started - self._queued)),
                **_pace("predicted", self._num_tokens, ended - first),
            },
        }
        wanted = self._body.response_fields
        return value if wanted is None else dict(_picked(value, wanted))


def _pace(what: str, count: int, seconds: float) -> dict[str, float]:
    return {
        f"{what}_n": count,
        f"{what}_ms": seconds * 1000,
        f"{what}_per_token_ms": seconds * 1000 / max(1, count),
        f"{what}_per_second": count / seconds if seconds > 0 else 0.0,
    }


def _picked(value: dict[str, Any], wanted: Sequence[str]) -> list[tuple[str, Any]]:
    """Returns the fields that there are, by the names by which they were requested."""
    found = []
    for path in wanted:
        one: Any = value
        for name in path.split("/"):
            one = one.get(name) if isinstance(one, dict) else None
        if one is not None:
            found.append((path, one))
    return found


def _prompt(service: Service, body: InfillRequest) -> list[int]:
    """Returns the tokens of the prompt, with as many of the pieces of other files as fit."""
    engine = service.engine
    check_length(engine, "prompt", body.prompt)
    fixed = infill_prompt(service, body.input_prefix, body.input_suffix, names=("input_prefix", "input_suffix"))
    fixed += engine.tokenizer.encode(body.prompt, add_special=False)
    if not body.input_extra:
        return fixed
    answer = engine.max_model_len // 4 if body.n_predict < 0 else max(1, body.n_predict)
    room = engine.max_model_len - len(fixed) - answer
    special = len(engine.tokenizer.encode(""))
    return [*fixed[:special], *_files(service, body.input_extra, room), *fixed[special:]]


def _files(service: Service, chunks: Sequence[InfillChunk], room: int) -> list[int]:
    """Returns the tokens of pieces of files, the last ones that fit."""
    tokenizer = service.engine.tokenizer
    marks = next((found for texts in _FILE_MARKS if (found := _tokens(service, texts)) is not None), None)

    def encoded(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False)

    repository = [] if marks is None else [*marks[0], *encoded("repository\n")]
    separator = encoded("\n\n") if marks is None else marks[1]
    # The text to fill in is a file as well.
    own = [] if marks is None else [*separator, *encoded("filename\n")]
    pieces: list[list[int]] = []
    room -= len(repository) + len(own)
    for chunk in reversed(chunks):
        check_length(service.engine, "input_extra", chunk.text, chunk.filename)
        head = "" if marks is None else f"{chunk.filename}\n"
        pieces.append([*separator, *encoded(head + chunk.text)])
        room -= len(pieces[-1])
        if room < 0:
            pieces.pop()
            break
    return [*repository, *(token for piece in reversed(pieces) for token in piece), *own] if pieces else []


def _tokens(service: Service, texts: Sequence[str]) -> list[list[int]] | None:
    """Returns the token of each text; `None` if a text is not one token of the vocabulary."""
    marks = [service.engine.tokenizer.encode(text, add_special=False, parse_special=True) for text in texts]
    return marks if all(len(mark) == 1 for mark in marks) else None


def infill_prompt(
    service: Service, prefix: str, suffix: str, *, names: tuple[str, str] = ("prompt", "suffix")
) -> list[int]:
    """Returns the tokens of a prompt whose answer goes between two texts.

    Args:
        service: The model.
        prefix: The text before the answer.
        suffix: The text after it.
        names: The parameters that the texts come from.

    Raises:
        ApiError: A text is too long, or the vocabulary has no tokens that mark the three places.
    """
    check_length(service.engine, names[0], prefix)
    check_length(service.engine, names[1], suffix)
    tokenizer = service.engine.tokenizer
    for texts in _MARKS:
        if (marks := _tokens(service, texts)) is not None:
            begin, hole, end = marks
            before, behind = (tokenizer.encode(text, add_special=False) for text in (prefix, suffix))
            return [*tokenizer.encode(""), *begin, *before, *hole, *behind, *end]
    raise ApiError(
        400,
        f"{names[1]}: the model's vocabulary has no tokens to fill in the middle; leave it out, or use another model",
        param=names[1],
    )
