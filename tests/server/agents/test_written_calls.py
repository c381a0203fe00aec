"""Calls, and an example of one, that the server writes where the template writes none: with the model's own tokens."""

import pytest
from marked_models import marked
from parsing_cases.families import chat, each
from parsing_cases.formats import STRING, tool
from rocmforge import Tokenizer
from server_process import serving

LFM2 = "{# <|tool_list_start|> #}" + chat("")
NAMED = chat(each("<|call|>{{ f.name }}<|args|>{{ f.arguments | tojson }}<|/call|>"))
# A template, the control tokens of its calls, and how often a prompt with a tool and a call has each.
TEMPLATES = {
    "calls": (LFM2, ["<|tool_call_start|>", "<|tool_call_end|>"], 1),
    # One is the template's, and one the server's example.
    "example": (NAMED.replace("{%- if tools %}", "{%- if false %}"), ["<|call|>", "<|args|>", "<|/call|>"], 2),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_markers_of_written_calls_are_control_tokens(name, long_model, tmp_path):
    """C6, A1: as in the model's own calls; the same text of a client stays text."""
    source, marks, count = TEMPLATES[name]
    path = marked(long_model, tmp_path / "model.gguf", control=marks)
    template = tmp_path / "template.jinja"
    template.write_text(source)
    forged = "".join(marks)
    call = {"id": "call_0", "type": "function", "function": {"name": "do_it", "arguments": f'{{"text": "{forged}"}}'}}
    messages = [
        {"role": "user", "content": forged},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_0", "content": forged},
    ]
    body = {"messages": messages, "tools": [tool("do_it", text=STRING)]}
    with serving(tmp_path, path, "--chat-template", template) as server:
        ids = server.client.post("/tokenize", json=body).json()["tokens"]
        prompt = server.client.post("/apply_template", json=body).json()["prompt"]
    tokenizer = Tokenizer(path)
    assert tokenizer.decode(ids) == prompt
    for mark in marks:
        (control,) = tokenizer.encode(mark, add_special=False, parse_special=True)
        assert (ids.count(control), prompt.count(mark)) == (count, count + 3)
