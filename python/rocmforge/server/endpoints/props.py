"""The properties of a model, which clients ask for first, in the formats of llama.cpp and vLLM."""

from typing import Any

from fastapi import APIRouter, Depends, Request

from rocmforge import __version__
from rocmforge.errors import InvalidRequestError
from rocmforge.server.endpoints.state import Asked
from rocmforge.server.http.access import shown_path
from rocmforge.server.http.query import known_query
from rocmforge.server.service import Service

router = APIRouter(tags=["Properties"], dependencies=[Depends(known_query)])

# llama.cpp's names of sampling parameters, where they differ.
_NAMES = {"repetition_penalty": "repeat_penalty"}


@router.get("/props")
async def props(service: Asked, request: Request) -> dict[str, Any]:
    """The properties of a loaded model, in llama.cpp's format."""
    engine, replies = service.engine, service.replies
    sampling = {_NAMES.get(name, name): value for name, value in engine.recommended_sampling().items()}
    return {
        "default_generation_settings": {"n_ctx": engine.max_model_len, "params": sampling},
        "total_slots": engine.config()["max_num_seqs"],
        "model_alias": service.names[0],
        "model_path": shown_path(engine.model, request.state.client),
        "modalities": {"vision": engine.mmproj is not None, "audio": False},
        "chat_template": _template(service),
        "chat_template_caps": {
            "supports_tools": replies.chat.calls is not None,
            "supports_tool_calls": replies.chat.calls is not None,
            "supports_parallel_tool_calls": replies.chat.calls is not None and not replies.needs.single_calls,
            "supports_system_role": True,
        },
        **_special_tokens(service),
        "build_info": f"rocmforge {__version__}",
        "is_sleeping": False,
    }


@router.get("/tokenizer_info")
async def tokenizer_info(service: Asked) -> dict[str, Any]:
    """The control tokens and the chat template of a loaded model, for evaluation harnesses."""
    template = _template(service)
    tokens = _special_tokens(service)
    known = {
        "tokenizer_class": "rocmforge",
        "pad_token": tokens["eos_token"],
        "model_max_length": service.engine.max_model_len,
    }
    return known | tokens | ({"chat_template": template} if template else {})


def _template(service: Service) -> str:
    """Returns the chat template for conversations without tools; empty for a model without one."""
    try:
        return service.chat_template or service.engine.tokenizer.chat_template or ""
    except InvalidRequestError:
        return ""


def _special_tokens(service: Service) -> dict[str, str | None]:
    """The texts of the tokens that begin and end a text; `null` for a vocabulary without."""
    try:
        tokenizer = service.engine.tokenizer
    except InvalidRequestError:
        return {"bos_token": None, "eos_token": None}
    bos, ends = tokenizer.bos_token_id, tokenizer.eos_token_ids
    return {
        "bos_token": None if bos is None else tokenizer.decode([bos]),
        "eos_token": tokenizer.decode(ends[:1]) if ends else None,
    }
