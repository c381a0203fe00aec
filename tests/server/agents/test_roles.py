"""Conversations of any client are shown whole by templates that refuse, or lose, a part of them."""

import json
import sys
from dataclasses import replace

import pytest
from jinja_environment import renderer
from parsing_cases.families import JSON_CALL, chat, each
from parsing_cases.formats import STRING, tool
from rocmforge.parsing import find_format
from rocmforge.parsing.needs import NO_NEEDS, find_needs
from rocmforge.server.answers.replies import described
from rocmforge.server.chat.roles import in_roles, with_tools
from rocmforge.server.chat.turns import fitted, with_reasoning

TOOLS = [tool("do_it", text=STRING)]
HERMES = each("<tool_call>" + JSON_CALL + "</tool_call>")
NAMED = each("<|call|>{{ f.name }}<|args|>{{ f.arguments | tojson }}<|/call|>")
PLAIN = chat(HERMES)
REFUSE = "{% if %s %}{{ raise_exception('refused') }}{% endif %}"


def refusing(condition, template=PLAIN):
    """A template that refuses messages under a condition about `m`."""
    return "{% for m in messages %}" + REFUSE.replace("%s", condition, 1) + "{% endfor %}" + template


COUNTED = "messages | selectattr('tool_calls', 'undefined') | rejectattr('role', 'equalto', 'tool')"
ALTERNATING = (
    "{% set n = namespace(i=0) %}{% for m in "
    + COUNTED
    + " if m.role != 'system' %}"
    + REFUSE.replace("%s", "(m.role == 'user') != (n.i % 2 == 0)", 1)
    + "{% set n.i = n.i + 1 %}{% endfor %}"
    + PLAIN
)
TEMPLATES = {
    "plain": PLAIN,
    "no-system": refusing("m.role == 'system'"),
    "system-first": refusing("m.role == 'system' and not loop.first"),
    "question": REFUSE.replace("%s", "messages | selectattr('role', 'equalto', 'user') | list | length == 0", 1)
    + PLAIN,
    "alternating": ALTERNATING,
    "answers-with-text": refusing("m.role == 'assistant' and not m.content and not m.tool_calls", ALTERNATING),
    "texts-only": refusing("m.content is not string and m.content is not none"),
    "cut-ids": chat(
        each("{% if c.id | length < 9 %}{{ raise_exception('id') }}{% endif %}<tool_call>" + JSON_CALL + "</tool_call>")
    ),
    "calls-apart": chat(HERMES).replace("{% if m.tool_calls %}", "{% if m.tool_calls and not m.content %}"),
    "text-apart": chat(HERMES).replace("{% if m.content %}", "{% if false %}"),
    "last-system": "{% set n = namespace(s='') %}{% for m in messages if m.role == 'system' %}{% set n.s = m.content %}"
    "{% endfor %}{{ n.s }}"
    + PLAIN.replace("{%- for m in messages %}", "{%- for m in messages if m.role != 'system' %}"),
    "properties": "{% for t in tools or [] %}{% for k in t.function.parameters.properties.items() %}{% endfor %}"
    "{% endfor %}" + PLAIN,
    "tools-nowhere": chat(NAMED).replace("{%- if tools %}", "{%- if false %}"),
    "tools-in-message": "{{ messages[0].tools }}<|tool|><|/tool|>"
    + chat("").replace("{%- if tools %}", "{% if false %}"),
    "calls-nowhere": "{# <|tool_call|> #}" + chat(""),
    # Gemma 2 and 3 refuse results of tools, and Phi 3.5 leaves them out.
    "results-refused": refusing("m.role == 'tool'", ALTERNATING.replace(HERMES, "")),
    "results-nowhere": chat("").replace("{%- else %}<|{{ m.role }}|>", "{%- elif m.role != 'tool' %}<|{{ m.role }}|>"),
}


def call(text, id_="call_0"):
    return {"id": id_, "type": "function", "function": {"name": "do_it", "arguments": {"text": text}}}


USER, MORE = {"role": "user", "content": "Question"}, {"role": "user", "content": "Another"}
SYSTEM = {"role": "system", "content": "Rules"}
ANSWER = {"role": "assistant", "content": "Answer"}
CALLING = {"role": "assistant", "content": "", "tool_calls": [call("first")]}
SAYING = {"role": "assistant", "content": "Saying", "tool_calls": [call("first")]}
RESULT = {"role": "tool", "tool_call_id": "call_0", "name": "do_it", "content": "Result"}
SECOND = {"role": "tool", "tool_call_id": "call_1", "name": "do_it", "content": "Other result"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "Question"}, {"type": "text", "text": "Another"}]}
CONVERSATIONS = {
    "system": [SYSTEM, USER, ANSWER, MORE],
    "late-system": [USER, ANSWER, SYSTEM, MORE],
    "answer-first": [SYSTEM, ANSWER, USER],
    "questions": [USER, MORE],
    "answers": [USER, ANSWER, {**ANSWER, "content": "Second"}, MORE],
    "no-text": [USER, {"role": "assistant", "content": ""}, MORE],
    "call": [SYSTEM, USER, CALLING, RESULT],
    "text-and-call": [USER, SAYING, RESULT, ANSWER, MORE],
    "question-after-result": [USER, CALLING, RESULT, MORE],
    "question-after-call": [USER, CALLING, MORE],
    "answer-and-call": [USER, ANSWER, CALLING, RESULT, {**ANSWER, "content": "Second"}, MORE],
    "parts": [PARTS],
    "no-question": [SYSTEM],
    "result-first": [CALLING, RESULT],
    "two-calls": [USER, {**SAYING, "tool_calls": [call("first"), call("second", "call_1")]}, RESULT, SECOND, ANSWER],
    "results-behind-both": [
        USER,
        CALLING,
        {**CALLING, "tool_calls": [call("second", "call_1")]},
        RESULT,
        SECOND,
        ANSWER,
    ],
}


def shown(source, messages, tools):
    """The prompt of a conversation, prepared as the server does it."""
    render = renderer(source)
    needs, shape = find_needs(render), find_format(source, render).shape
    if needs.descriptions:
        tools = [described(each) for each in tools]
    turns = with_tools(fitted(messages, needs, shape), tools, needs, shape)
    return render(with_reasoning(in_roles(turns, needs), source), tools, True)


def words(message):
    """Yields the texts of a message and of its calls."""
    content = message["content"]
    yield from ([content] if isinstance(content, str) else [part["text"] for part in content])
    yield from (each["function"]["arguments"]["text"] for each in message.get("tool_calls", []))


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_every_template_shows_every_conversation(name, conversation):
    """C6: all texts and calls come in their order, and no template refuses them."""
    messages = CONVERSATIONS[conversation]
    given = json.dumps(messages)
    text = shown(TEMPLATES[name], messages, TOOLS)
    place = 0
    for word in (word for message in messages for word in words(message)):
        assert word in text[place:], (word, text)
        place = text.index(word, place) + len(word)
    assert json.dumps(messages) == given


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name != "properties"])
def test_tools_are_shown(name):
    """C6: by the template, in the system message where it looks for them there, or as a part of its text."""
    for messages in ([USER], [SYSTEM, USER], [{**SYSTEM, "content": PARTS["content"]}, USER]):
        if name == "texts-only" and messages[0]["content"] == PARTS["content"]:
            continue
        text = shown(TEMPLATES[name], messages, TOOLS)
        assert '"do_it"' in text
        assert "Question" in text.partition('"do_it"')[2]
        assert ("<|call|>NAME<|args|>" in text) == (name == "tools-nowhere")


@pytest.mark.parametrize("name", TEMPLATES)
def test_earlier_messages_stay_as_they_were(name):
    """C6: the messages of a turn begin those of the next one, or the prefix cache would miss."""
    render = renderer(TEMPLATES[name])
    needs = find_needs(render)
    done = {**ANSWER, "content": "Done"}
    for turns in (
        [[USER], [SAYING, RESULT], [ANSWER, MORE], [SAYING, RESULT], [done, USER]],
        [[USER], [ANSWER, CALLING, RESULT], [done, MORE], [ANSWER, CALLING, RESULT], [CALLING, RESULT], [done]],
        [[SYSTEM, CALLING, RESULT], [ANSWER, MORE], [done, USER]],
    ):
        whole, before = [], []
        for turn in turns:
            whole += turn
            fitting = in_roles(fitted(whole, needs), needs)
            assert fitting[: len(before)] == before
            # The model's own turn stands where it was written.
            assert not before or fitting[len(before)]["role"] == "assistant"
            before = fitting


def test_parts_without_text_are_no_text():
    """C6: SDKs send a list with an empty text where there is none."""
    blank = [{"type": "text", "text": ""}]
    needs = find_needs(renderer(TEMPLATES["answers-with-text"]))
    (_, answer, _) = in_roles([USER, {"role": "assistant", "content": blank}, MORE], needs)
    assert answer["content"].strip() == "" != answer["content"]
    needs = find_needs(renderer(TEMPLATES["calls-apart"]))
    assert len(fitted([USER, {**CALLING, "content": blank}, RESULT], needs)) == 3


def test_results_of_no_call_have_short_ids_too():
    """C4: a client may have cut off the call, or answered it twice."""
    needs = replace(NO_NEEDS, ids="short")
    made = fitted([USER, CALLING, RESULT, RESULT, {**RESULT, "tool_call_id": "call_of_another_server"}], needs)
    ids = [message["tool_call_id"] for message in made[2:]]
    assert ids[0] == made[1]["tool_calls"][0]["id"] == ids[1] != ids[2]
    assert all(len(each) == 9 and each.isalnum() for each in ids)


@pytest.mark.parametrize("ids", ["any", "short", "named"])
def test_results_behind_several_messages_name_their_calls(ids):
    """C4: also where a client counts the calls of each message from 0, or gives no ids."""
    needs = replace(NO_NEEDS, ids=ids)
    other = {**CALLING, "tool_calls": [call("second", "call_1")]}
    made = fitted([USER, CALLING, other, SECOND, RESULT, RESULT, CALLING, RESULT], needs)
    (first, second, third) = (message["tool_calls"][0]["id"] for message in made if message.get("tool_calls"))
    assert [each["tool_call_id"] for each in made if each["role"] == "tool"] == [second, first, first, third]
    nameless = [{"role": "tool", "content": "Result"}, {"role": "tool", "content": "Other"}]
    two = {**CALLING, "tool_calls": [{**each, "id": None} for each in (call("first"), call("second"))]}
    made = fitted([USER, CALLING, two, *nameless, *nameless], needs)
    assert [each.get("tool_call_id") for each in made[3:]] == [each["id"] for each in made[2]["tool_calls"]] + [
        None
    ] * 2


def test_merged_answers_keep_their_reasoning():
    """C6: an agent's answers in a row, each with its own reasoning."""
    needs = find_needs(renderer(ALTERNATING))
    answers = [{**ANSWER, "content": text, "reasoning_content": f"On {text}"} for text in ("a", "b")]
    (_, merged, _) = in_roles([USER, *answers, MORE], needs)
    assert [part["text"] for part in merged["content"]] == ["a", "b"]
    assert merged["reasoning_content"] == "On a\nOn b"


@pytest.mark.parametrize("single_calls", [False, True])
def test_work_grows_with_the_calls_of_a_message(single_calls):
    """H1: 20 times the calls take about 20 times as many lines of Python, and not 400 times."""
    needs = replace(NO_NEEDS, single_calls=single_calls)

    def lines(count):
        calls = [call("text", f"call_{number}") for number in range(count)]
        results = [{**RESULT, "tool_call_id": each["id"]} for each in reversed(calls)]
        messages = [USER, {**CALLING, "tool_calls": calls}, *results]
        executed = 0

        def trace(frame, event, _argument):
            nonlocal executed
            executed += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            made = fitted(messages, needs)
        finally:
            sys.settrace(before)
        assert len(made) >= count
        return executed

    assert lines(2_000) < 25 * lines(100)


def test_a_tool_may_lack_properties():
    """C3: a schema that says no more than that it is an object."""
    tools = [{"type": "function", "function": {"name": "do_it", "parameters": {"type": "object"}}}]
    assert "do_it" in shown(TEMPLATES["properties"], [USER], tools)


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_has_the_name_of_the_template(key):
    """C10: a message's reasoning is given under the name that the template reads."""
    source = "{% for message in messages %}{{ message.KEY }}{% endfor %}".replace("KEY", key)
    (message,) = with_reasoning([{**ANSWER, "reasoning_content": "Well"}], source)
    assert renderer(source)([message], [], False) == "Well"
