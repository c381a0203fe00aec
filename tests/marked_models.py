"""Tiny models with random weights that know the markers of a form of calls, and have a real chat template of it."""

import lzma
import re

import pytest
from conftest import DATA
from tiny_models import rewritten

from gguf import GGUFReader

# Chat templates of real models, by the form of their calls; the markers that are control tokens in their vocabularies,
# and those that are tokens of the text.
FORMS = {
    "hermes": ("Qwen-Qwen3-0.6B", [], ["<think>", "</think>", "<tool_call>", "</tool_call>"]),
    "qwen-xml": ("Qwen-Qwen3.5-4B", [], ["<think>", "</think>", "<tool_call>", "</tool_call>"]),
    "glm": ("zai-org-GLM-4.5", [], ["<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>"]),
    "llama": ("meta-llama-Llama-3.2-3B-Instruct", ["<|python_tag|>"], []),
    "mistral": ("mistralai-Mistral-Nemo-Instruct-2407", ["[TOOL_CALLS]", "[INST]", "[/INST]"], []),
    "gemma4": (
        "google-gemma-4-E2B-it",
        ["<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>", "<|tool_response>"],
        [],
    ),
    "harmony": (
        "openai-gpt-oss-20b",
        ["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"],
        [],
    ),
}
# Each form takes a server: at every commit those whose grammars differ most.
FORM_PARAMS = [
    pytest.param(form, marks=[] if form in ("hermes", "mistral", "gemma4", "harmony") else pytest.mark.deep)
    for form in FORMS
]
CONTROL, USER_DEFINED = 3, 4
TOKENS = "tokenizer.ggml.tokens"
# The last token of the vocabulary that is text.
FIRST = 506


def marked(source, target, *, control):
    """A copy of a model with control tokens in place of some others."""
    return rewritten(source, target, replace=_with_marks(GGUFReader(source).fields, control, []))


def _with_marks(fields, control, text):
    tokens = fields[TOKENS].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    merges = fields["tokenizer.ggml.merges"].contents()
    for index, (marker, kind) in enumerate([(m, CONTROL) for m in control] + [(m, USER_DEFINED) for m in text]):
        gone = tokens[FIRST - index]
        merges = [merge for merge in merges if gone not in (*merge.split(" "), merge.replace(" ", ""))]
        tokens[FIRST - index], types[FIRST - index] = marker, kind
    return {"tokenizer.ggml.merges": merges, TOKENS: tokens, "tokenizer.ggml.token_type": types}


def model_of(form, folder, tiny_model, turns=()):
    """A model with the markers of a form in place of some tokens, and with its chat template for one certain day.

    `turns`: control tokens that begin and end turns, in addition.
    """
    name, control, text = FORMS[form]
    control = [*control, *turns]
    source = tiny_model("quant_models/Q4_0")
    fields = GGUFReader(source).fields
    changes = _with_marks(fields, control, text)
    template = lzma.decompress((DATA / "templates" / f"{name}.jinja.xz").read_bytes()).decode()
    changes |= {
        # Texts are to be the same tomorrow.
        "tokenizer.chat_template": re.sub(r"strftime_now\(.*?\)", '"2026-11-27"', template),
        "llama.context_length": 8192,
    }
    # Where nothing else ends a turn, the next role does.
    roles = {"eot": "<|user|>", "eom": "<|observation|>"}
    changes |= {
        f"tokenizer.ggml.{key}_token_id": changes[TOKENS].index(role) for key, role in roles.items() if role in turns
    }
    extra = {key: value for key, value in changes.items() if key not in fields}
    replaced = {key: value for key, value in changes.items() if key in fields}
    return rewritten(source, folder / f"{form}.gguf", replace=replaced, extra=extra)
