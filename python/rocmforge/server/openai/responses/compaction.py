"""Counting and compacting conversations of the Responses API."""

import time
import uuid
from typing import Any

from fastapi import APIRouter, Depends, Request

from rocmforge.executors import to_thread
from rocmforge.parsing import gather
from rocmforge.server.answers.replies import check_ending
from rocmforge.server.answers.sealed import sealed
from rocmforge.server.chat.rules import ReplyRules
from rocmforge.server.chat.toolset import ToolSet
from rocmforge.server.chat.turns import in_turns
from rocmforge.server.http.query import known_query
from rocmforge.server.http.reading import BodyRoute
from rocmforge.server.http.streaming import unless_gone
from rocmforge.server.openai.events import ReasoningTokens, Usage, response_usage
from rocmforge.server.openai.responses.body import CompactRequest, InputTokensRequest
from rocmforge.server.openai.responses.conversation import fitting_prompt, said, template_messages
from rocmforge.server.openai.responses.items import MessageItem, new_id
from rocmforge.server.openai.responses.stored import Stored
from rocmforge.server.requests import Served, sampling_params

router = APIRouter(tags=["OpenAI"], route_class=BodyRoute, dependencies=[Depends(known_query)])

_MAX_SUMMARY_TOKENS = 2048
_SUMMARISE = (
    "Summarise the conversation so far for whoever goes on with it: what was asked for, what was done and found, which "
    "decisions and names matter, and what is left to do. Write the summary alone."
)


@router.post("/v1/responses/input_tokens")
async def count_input_tokens(
    body: InputTokensRequest, request: Request, models: Served, store: Stored
) -> dict[str, Any]:
    """The number of tokens of a conversation."""
    service = await models.use(body.model_name(models.registry))
    before, _, items = said(body, store, request.state.client)
    tools = body.toolset(items)
    rules, messages = body.rules(tools, items), template_messages(body.instructions, items, tools, len(before))
    params, cuts = sampling_params(service, None), body.truncation == "auto"
    call = body.call(request, f"resp_{uuid.uuid4().hex}")
    prompt = await unless_gone(request, to_thread(fitting_prompt, service, rules, messages, params, call, cuts=cuts))
    return {"object": "response.input_tokens", "input_tokens": prompt.num_tokens}


@router.post("/v1/responses/compact")
async def compact(body: CompactRequest, request: Request, models: Served, store: Stored) -> dict[str, Any]:
    """Shortens a conversation: the user's messages stay, and the model summarises the rest."""
    service = await models.use(body.model_name(models.registry))
    before, _, items = said(body, store, request.state.client)
    messages = template_messages(body.instructions, items, ToolSet(), len(before))
    asked = in_turns([*messages, {"role": "user", "content": _SUMMARISE}])
    # A summary needs no reasoning, where the template can turn it off.
    rules = ReplyRules(thinking=False if service.replies.switches_reasoning else None)
    params = sampling_params(service, _MAX_SUMMARY_TOKENS, output_kind="final_only")
    id_ = f"resp_{uuid.uuid4().hex}"
    call = body.call(request, id_)

    async def answer() -> dict[str, Any]:
        prompt = await to_thread(fitting_prompt, service, rules, asked, params, call, cuts=True)
        async with await prompt.submit(service, call) as generations:
            (output,) = await generations.final()
        (one,) = output.outputs
        check_ending(one)
        events = prompt.reader(service).read(one)
        usage, reasoning = Usage(), ReasoningTokens(service.engine.tokenizer)
        usage.add(output)
        reasoning.add(0, events)
        kept = [item for item in items if isinstance(item, MessageItem) and item.role == "user"]
        summary = {
            "type": "compaction",
            "id": new_id("compaction"),
            "encrypted_content": sealed(gather(events).content or ""),
        }
        return {
            "id": id_,
            "object": "response.compaction",
            "created_at": int(time.time()),
            "output": [*(item.model_dump(exclude_none=True) for item in kept), summary],
            "usage": response_usage(usage, reasoning),
        }

    return await unless_gone(request, answer())
