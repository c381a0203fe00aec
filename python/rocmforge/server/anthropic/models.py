"""Models as Anthropic's `/v1/models` describes them."""

from datetime import UTC, datetime
from typing import Any

from rocmforge.server.models.model import Model
from rocmforge.server.service import Service

_EFFORTS = ("low", "medium", "high", "xhigh", "max")


def describe(model: Model, name: str) -> dict[str, Any]:
    """Returns one model in Anthropic's format; fields that need a loaded model are `null` before."""
    length = None if model.service is None else model.service.engine.max_model_len
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": length,
        "max_tokens": length,
        "capabilities": None if model.service is None else _capabilities(model.service),
    }


def _capabilities(service: Service) -> dict[str, Any]:
    replies = service.replies
    switch = replies.switches_reasoning
    efforts = replies.knows_efforts or switch
    no = _support(False)
    return {
        "batch": no,
        "citations": no,
        "code_execution": no,
        "compaction": no | {"summarize": no},
        "context_management": no,
        "effort": _support(efforts) | {level: _support(efforts) for level in _EFFORTS},
        "image_input": _support(service.engine.mmproj is not None),
        "pdf_input": no,
        "server_tools": no | {"code_execution": no, "web_search": no},
        "structured_outputs": _support(True),
        "thinking": _support(replies.thinks)
        | {
            "types": {
                "adaptive": _support(replies.thinks),
                "between_tools": no,
                "disabled": _support(switch or not replies.thinks),
                "enabled": _support(replies.thinks),
            }
        },
    }


def _support(supported: bool) -> dict[str, Any]:
    return {"supported": supported}
