"""Texts, conversations and their tokens: `/tokenize`, `/detokenize`, `/apply_template`, by vLLM's forms."""

import asyncio
from typing import Any, Self

from fastapi import APIRouter
from pydantic import Field, model_validator

from rocmforge._rocmforge import ChatPrompt
from rocmforge.server.bodies import Body
from rocmforge.server.chats import ChatMessage, TemplateBody, template_messages, template_prompt
from rocmforge.server.requests import MODEL_MEANING, Served
from rocmforge.server.service import Service

router = APIRouter(tags=["Tokens"])


class ApplyTemplateRequest(TemplateBody):
    """The body of `/apply_template`."""

    model: str | None = Field(None, description=MODEL_MEANING)
    messages: list[ChatMessage] = Field(min_length=1, description="The conversation, oldest message first.")


class TokenizeRequest(TemplateBody):
    """The body of `/tokenize`: a text or a conversation."""

    model: str | None = Field(None, description=MODEL_MEANING)
    prompt: str | None = Field(None, description="A text, or else:")
    messages: list[ChatMessage] | None = Field(None, min_length=1, description="A conversation.")
    add_special_tokens: bool = Field(default=True, description="Of a text: those that the model's file asks for.")
    return_token_strs: bool = Field(default=False, description="Whether the text of each token is told as well.")

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
async def tokenize(body: TokenizeRequest, models: Served) -> dict[str, Any]:
    """Token ids of a text or of a conversation."""
    service = await models.use(body.model)
    engine = service.engine
    if body.messages is not None:
        tokens = (await asyncio.to_thread(_chat_prompt, service, body, body.messages)).token_ids
    else:
        tokens = await asyncio.to_thread(engine.tokenize, body.prompt or "", add_special=body.add_special_tokens)
    texts = [engine.detokenize([token]) for token in tokens] if body.return_token_strs else None
    return {
        "count": len(tokens),
        "max_model_len": engine.max_model_len,
        "tokens": tokens,
        "token_strs": texts,
    }


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, models: Served) -> dict[str, Any]:
    """The text of token ids."""
    service = await models.use(body.model)
    return {"prompt": await asyncio.to_thread(service.engine.detokenize, body.tokens)}


@router.post("/apply_template")
async def apply_template(body: ApplyTemplateRequest, models: Served) -> dict[str, Any]:
    """The text that a conversation becomes."""
    service = await models.use(body.model)
    prompt = await asyncio.to_thread(_chat_prompt, service, body, body.messages)
    return {"prompt": prompt.text}


def _chat_prompt(service: Service, body: TemplateBody, messages: list[ChatMessage]) -> ChatPrompt:
    options = body.template_options()
    if body.tools:
        service.replies.check_tools()
        options["tools"] = [tool.function.described() for tool in body.tools]
    return template_prompt(service, template_messages(messages), options)
