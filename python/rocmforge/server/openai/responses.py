"""`/v1/responses`."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, Query, Request
from pydantic import BeforeValidator, Field, TypeAdapter, model_validator
from starlette.responses import JSONResponse, Response

from rocmforge._rocmforge import SamplingParams, Tokenizer
from rocmforge.outputs import CompletionOutput
from rocmforge.prompts import ChatOptions
from rocmforge.server.bodies import Body, JsonObject, Text
from rocmforge.server.errors import ApiError
from rocmforge.server.errors import body as error_body
from rocmforge.server.generation import Generations
from rocmforge.server.openai.events import Usage
from rocmforge.server.openai.items import AnyItem, InputItem, template_messages, with_ids
from rocmforge.server.openai.output import OutputItems
from rocmforge.server.openai.stored import ResponseStore, Stored, StoredResponse
from rocmforge.server.openai.tool_choice import ResponseToolChoice, allowed_calls, chosen
from rocmforge.server.replies import check_ending, function_tool
from rocmforge.server.requests import MODEL_MEANING, STREAM_MEANING, QueueBody, Served, recommended, sampling_params
from rocmforge.server.rules import ReplyRules, forced_call, ruled_prompt
from rocmforge.server.service import Service
from rocmforge.server.streaming import Submitted, named_event, respond
from rocmforge.server.structured import TextFormat

router = APIRouter(tags=["OpenAI"])

_ITEMS: TypeAdapter[list[AnyItem]] = TypeAdapter(list[InputItem])
NO_EFFECT = "For the client's own records; it has no effect."


class FunctionTools(Body):
    """A function that the client runs."""

    type: Literal["function"]
    name: Text = Field(min_length=1)
    description: Text | None = None
    parameters: JsonObject | None = None
    strict: bool | None = Field(None, description="Whether arguments have to fit the schema.")


class TextOptions(Body):
    """How the answer is written."""

    format: TextFormat | None = None


class ReasoningOptions(Body):
    """How much the model thinks."""

    effort: Text | None = None
    summary: Literal["auto"] | None = Field(None, description="Thoughts are told whole, so there are no summaries.")


def _as_items(value: Any) -> Any:
    return [{"type": "message", "role": "user", "content": value}] if isinstance(value, str) else value


Input = Annotated[list[InputItem], BeforeValidator(_as_items, json_schema_input_type=str | list[InputItem])]


class ResponsesRequest(QueueBody):
    """The body of `/v1/responses`."""

    model: str | None = Field(None, description=MODEL_MEANING)
    input: Input = Field(min_length=1, description="A text, or items of a conversation, the oldest first.")
    instructions: Text | None = Field(None, description="The system prompt of this request alone.")
    previous_response_id: str | None = Field(None, description="An answer that is kept, from which to go on.")
    store: bool = Field(default=True, description="Whether the answer is kept.")
    max_output_tokens: int | None = Field(None, ge=1, description="Most tokens; by default what has room.")
    temperature: float | None = recommended("temperature")
    top_p: float | None = recommended("top_p")
    tools: list[FunctionTools] | None = Field(None, description="Functions that the model may call.")
    tool_choice: ResponseToolChoice = Field(
        "auto",
        description="Whether it calls them; `required` and a function: it has to; `allowed_tools`: only some.",
    )
    parallel_tool_calls: bool = Field(default=True, description="Whether there may be more than one call.")
    reasoning: ReasoningOptions | None = Field(
        None, description="`effort`: how much the model thinks, where its chat template can tell it."
    )
    text: TextOptions | None = Field(None, description="`format`: the form of the answer.")
    include: list[Literal["reasoning.encrypted_content"]] | None = Field(
        None, description="`reasoning.encrypted_content`: thoughts also in a form that a client sends back as it is."
    )
    prompt_cache_key: Text | None = Field(None, description="All prefixes are cached; it has no effect.")
    truncation: Literal["disabled"] = Field("disabled", description="What is too long is refused.")
    background: Literal[False] = Field(default=False, description="Answers are not made in the background.")
    stream: bool = Field(default=False, description=STREAM_MEANING)
    metadata: dict[Text, Text] | None = Field(None, description="Given back with the answer.")
    client_metadata: JsonObject | None = Field(None, description=NO_EFFECT)
    user: Text | None = Field(None, description=NO_EFFECT)

    def sampling(self, service: Service) -> SamplingParams:
        """The engine's parameters."""
        return sampling_params(
            service,
            self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            output_kind="delta" if self.stream else "final_only",
        )

    def rules(self) -> ReplyRules:
        """The rules of the answer."""
        choice, allowed = chosen(self.tool_choice)
        tools = [] if choice == "none" else self.tools or []
        names = [tool.name for tool in tools]
        return ReplyRules(
            tools=[function_tool(tool.name, tool.description, tool.parameters) for tool in tools],
            forced=forced_call(choice, names),
            allowed=allowed_calls(allowed, names),
            strict=frozenset(tool.name for tool in tools if tool.strict),
            parallel=self.parallel_tool_calls,
            form=None if self.text is None or self.text.format is None else self.text.format.params(),
            form_param="text.format",
            effort=None if self.reasoning is None else self.reasoning.effort,
            effort_param="reasoning.effort",
        )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        form = None if self.text is None else self.text.format
        if form is not None and form.type != "text" and self.tools and self.tool_choice != "none":
            raise ValueError("an answer of a given form calls no tools: leave out one of the two")
        return self


@router.post("/v1/responses")
async def create_response(body: ResponsesRequest, request: Request, models: Served, store: Stored) -> Response:
    """Answers a text or a conversation, and keeps the answer."""
    service = await models.use(body.model)
    answer = _Answer(body, body.model or service.names[0], service.engine.tokenizer, store)
    submitted = answer.submit(request, service)
    return await respond(request, answer, submitted, stream=body.stream)


@router.get("/v1/responses/{response_id}")
async def retrieve_response(response_id: str, request: Request, store: Stored) -> dict[str, Any]:
    """An answer that is kept."""
    return store.get(request.state.client, response_id).response


@router.delete("/v1/responses/{response_id}")
async def delete_response(response_id: str, request: Request, store: Stored) -> dict[str, Any]:
    """Forgets an answer."""
    store.delete(request.state.client, response_id)
    return {"id": response_id, "object": "response", "deleted": True}


@router.get("/v1/responses/{response_id}/input_items")
async def list_input_items(
    response_id: str,
    request: Request,
    store: Stored,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> dict[str, Any]:
    """The items of the request that was answered."""
    items = store.get(request.state.client, response_id).input
    if order == "desc":
        items = items[::-1]
    if after is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise ApiError(400, f"after: got {after!r}, expected the id of an item", param="after")
        items = items[ids.index(after) + 1 :]
    page = items[:limit]
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return {"object": "list", "data": page, **ends, "has_more": len(items) > limit}


class _Answer:
    """Makes the answer to one request."""

    def __init__(self, body: ResponsesRequest, model: str, tokenizer: Tokenizer, store: ResponseStore) -> None:
        self._body = body
        self._model = model
        self._tokenizer = tokenizer
        self._store = store
        self._id = f"resp_{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._usage = Usage()
        self._output = OutputItems(seals_thoughts="reasoning.encrypted_content" in (body.include or ()))

    async def submit(self, request: Request, service: Service) -> Generations:
        """Hands the request to the engine."""
        body = self._body
        self._client = request.state.client
        self._before: list[dict[str, Any]] = []
        if body.previous_response_id is not None:
            stored = self._store.get(self._client, body.previous_response_id, "previous_response_id", 400)
            self._before = stored.conversation()
        self._input = with_ids(body.input)
        items = [*_ITEMS.validate_python(self._before), *self._input]
        rules, messages = body.rules(), template_messages(body.instructions, items)
        prompt = await asyncio.to_thread(ruled_prompt, service, rules, messages, ChatOptions(), body.sampling(service))
        self._reader, self._params = prompt.reader(service), prompt.params
        return await prompt.submit(service, body.call(request, self._id))

    async def whole(self, submitted: Submitted) -> Response:
        """Everything at once."""
        async with await submitted as generations:
            (output,) = await generations.final()
        self._usage.add(output)
        (one,) = output.outputs
        for _ in self._output.add(self._reader.read(one)):
            pass
        status = _status(one)
        for _ in self._output.finish(status):
            pass
        return JSONResponse(self._finished(status))

    async def pieces(self, path: str, generations: Generations) -> AsyncGenerator[bytes, None]:
        """Everything as it comes, each event with its number."""
        number = 0

        def event(value: dict[str, Any]) -> bytes:
            nonlocal number
            number += 1
            return named_event(value | {"sequence_number": number - 1})

        yield event({"type": "response.created", "response": self._response("in_progress")})
        yield event({"type": "response.in_progress", "response": self._response("in_progress")})
        try:
            async for _, output in generations.merged():
                self._usage.add(output)
                (one,) = output.outputs
                for told in self._output.add(self._reader.read(one)):
                    yield event(told)
                if one.finished():
                    status = _status(one)
                    for told in self._output.finish(status):
                        yield event(told)
                    yield event({"type": f"response.{status}", "response": self._finished(status)})
        except ApiError as error:
            for told in self._output.finish("incomplete"):
                yield event(told)
            failed = self._response("failed")
            said = error_body(path, error)["error"]
            failed["error"] = {"code": said["code"] or said["type"], "message": said["message"]}
            yield event({"type": "response.failed", "response": failed})

    def _finished(self, status: str) -> dict[str, Any]:
        """The answer, which is kept if that was asked for."""
        response = self._response(status)
        if self._body.store:
            items = [item.model_dump(exclude_none=True) for item in self._input]
            self._store.put(self._client, StoredResponse(response, self._before, items))
        return response

    def _response(self, status: str) -> dict[str, Any]:
        body = self._body
        ended = status in ("completed", "incomplete")
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        effort = None if body.reasoning is None else body.reasoning.effort
        given = None if body.text is None else body.text.format
        form = None if given is None else given.model_dump(by_alias=True, exclude_none=True)
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": incomplete,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self._model,
            "output": self._output.items if status != "in_progress" else [],
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": body.previous_response_id,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": {"effort": effort, "summary": None},
            "store": body.store,
            "temperature": self._params.temperature,
            "text": {"format": form or {"type": "text"}},
            "tool_choice": body.tool_choice if isinstance(body.tool_choice, str) else body.tool_choice.model_dump(),
            "tools": [tool.model_dump(exclude_none=True) for tool in body.tools or ()],
            "top_p": self._params.top_p,
            "truncation": body.truncation,
            "usage": self._counts() if ended else None,
            "user": body.user,
        }

    def _counts(self) -> dict[str, Any]:
        counts = self._usage.value()
        thoughts = (
            part["text"] for item in self._output.items if item["type"] == "reasoning" for part in item["content"]
        )
        # The engine counts tokens of the whole text; those of the thoughts are counted anew.
        reasoning = sum(len(self._tokenizer.encode(text, add_special=False)) for text in thoughts)
        cached = counts["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": reasoning},
            "total_tokens": counts["total_tokens"],
        }


def _status(one: CompletionOutput) -> str:
    """How an answer ended: OpenAI has no words for a time that was over and a server that ends."""
    check_ending(one)
    return "completed" if one.finish_reason == "stop" else "incomplete"
