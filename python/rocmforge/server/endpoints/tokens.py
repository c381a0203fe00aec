"""Texts, conversations and their tokens: `/tokenize`, `/detokenize`, `/apply_template`, by vLLM's forms."""

from collections.abc import Sequence
from typing import Any, Self

from fastapi import APIRouter, Request
from pydantic import Field, model_validator
from starlette.responses import Response

from rocmforge.executors import to_thread
from rocmforge.server.answers.generation import Client
from rocmforge.server.bodies import Body
from rocmforge.server.chat.chats import ChatMessage, TemplateBody, TemplatePrompt, template_messages, template_prompt
from rocmforge.server.http.reading import BodyRoute
from rocmforge.server.http.streaming import compact_json, unless_gone
from rocmforge.server.lengths import check_length
from rocmforge.server.requests import MODEL_MEANING, Served
from rocmforge.server.service import Service

router = APIRouter(tags=["Tokens"], route_class=BodyRoute)


# Values of a list to convert to JSON at a time.
PIECE = 10_000


class ApplyTemplateRequest(TemplateBody):
    """The body of `/apply_template`."""

    model: str | None = Field(None, description=MODEL_MEANING)
    messages: list[ChatMessage] = Field(min_length=1, description="The conversation, oldest message first.")


class TokenizeRequest(TemplateBody):
    """The body of `/tokenize`: a text or a conversation."""

    model: str | None = Field(None, description=MODEL_MEANING)
    prompt: str | None = Field(None, description="A text, or else:")
    messages: list[ChatMessage] | None = Field(None, min_length=1, description="A conversation.")
    add_special_tokens: bool = Field(default=True, description="If true, adds the model's special tokens to a text.")
    return_token_strs: bool = Field(default=False, description="If true, the answer has the text of each token too.")

    @model_validator(mode="after")
    def _one_of_the_two(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("prompt or messages, one of the two")
        return self


class DetokenizeRequest(Body):
    """The body of `/detokenize`."""

    model: str | None = Field(None, description=MODEL_MEANING)
    tokens: list[int] = Field(max_length=1 << 20, description="Token ids.")


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, request: Request, models: Served) -> Response:
    """Token ids of a text or of a conversation."""
    service = await models.use(body.model)
    content = await unless_gone(request, to_thread(_tokenized, service, body, request.state.client))
    return Response(content, media_type="application/json")


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, request: Request, models: Served) -> dict[str, Any]:
    """The text of token ids."""
    service = await models.use(body.model)
    return {"prompt": await unless_gone(request, to_thread(service.engine.detokenize, body.tokens))}


@router.post("/apply_template")
async def apply_template(body: ApplyTemplateRequest, request: Request, models: Served) -> dict[str, Any]:
    """The prompt that the chat template makes of a conversation."""
    service = await models.use(body.model)
    prompt = await unless_gone(request, to_thread(_chat_prompt, service, body, body.messages, request.state.client))
    return {"prompt": prompt.text}


def _tokenized(service: Service, body: TokenizeRequest, client: Client) -> bytes:
    engine = service.engine
    if body.messages is not None:
        prompt = _chat_prompt(service, body, body.messages, client)
        tokens = engine.prompt_token_ids(prompt.plain) if prompt.images else prompt.token_ids
    else:
        text = body.prompt or ""
        check_length(engine, "prompt", text)
        tokens = engine.tokenize(text, add_special=body.add_special_tokens)
    texts = [engine.detokenize([token]) for token in tokens] if body.return_token_strs else None
    counts = compact_json({"count": len(tokens), "max_model_len": engine.max_model_len})
    strings = b"null" if texts is None else _listed(texts)
    return b'%b,"tokens":%b,"token_strs":%b}' % (counts[:-1], _listed(tokens), strings)


def _listed(values: Sequence[int | str]) -> bytes:
    """Returns a list as JSON, made in pieces, between which other threads get the GIL."""
    pieces = (compact_json(values[at : at + PIECE])[1:-1] for at in range(0, len(values), PIECE))
    return b"[%b]" % b",".join(pieces)


def _chat_prompt(service: Service, body: TemplateBody, messages: list[ChatMessage], client: Client) -> TemplatePrompt:
    options = body.template_options()
    if body.tools:
        service.replies.check_tools()
        options["tools"] = body.toolset().functions
    return template_prompt(service, template_messages(messages), options, client)
