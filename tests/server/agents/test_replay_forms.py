"""Turns of the model that are kept: of every form of calls, in bounded memory, and none that has no end."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from marked_models import model_of
from rocmforge import SamplingParams, Tokenizer
from rocmforge.outputs import CompletionOutput
from rocmforge.server.answers.generation import Call, Client
from rocmforge.server.answers.replay import OVERHEAD, Beginning, KeptTurns, Replay, Told
from rocmforge.server.answers.replies import Reader, ServedFormat
from rocmforge.server.chat.turns import with_reasoning

PROPERTIES = {"city": {"enum": ["Paris", "Oslo"]}, "days": {"enum": [1, 2]}}
SCHEMA = {"type": "object", "properties": PROPERTIES, "required": ["city", "days"], "additionalProperties": False}
FUNCTION = {"name": "get_weather", "description": "The weather.", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]
# Control tokens of the templates that the models have in place of some tokens.
TURNS = {
    "hermes": ("<|im_start|>", "<|im_end|>"),
    "qwen-xml": ("<|im_start|>", "<|im_end|>"),
    "glm": ("<|user|>", "<|assistant|>", "<|observation|>", "<|system|>"),
    "mistral": ("</s>",),
    "gemma4": ("<|turn>", "<turn|>"),
}
# Calls with other white space than any template writes; the tests cut them into unusual tokens.
CALLS = {
    "hermes": '<tool_call>{"arguments":{"days":2,"city":"Oslo"},"name":"get_weather"}</tool_call>',
    "qwen-xml": "<tool_call><function=get_weather><parameter=city>Oslo</parameter>"
    "<parameter=days>2</parameter></function></tool_call>",
    "glm": "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value><arg_key>days</arg_key>"
    "<arg_value>2</arg_value></tool_call>",
    "llama": '{"name":"get_weather","parameters":{"days":2,"city":"Oslo"}}',
    "mistral": '[TOOL_CALLS] [{"arguments":{"days":2,"city":"Oslo"},"name":"get_weather"}]',
    "gemma4": '<|tool_call>call:get_weather{days: 2,city:<|"|>Oslo<|"|>}<tool_call|>',
    "harmony": "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
    '{"days":2,"city":"Oslo"}<|call|>',
}
REASONING = {
    "hermes": "<think>Rain?</think>",
    "qwen-xml": "<think>Rain?</think>",
    "glm": "\n<think> Rain? </think>",
    "harmony": "<|channel|>analysis<|message|>Rain?<|end|><|start|>assistant",
}


class Model:
    """A model that writes what it is told to."""

    def __init__(self, path):
        self.tokenizer = Tokenizer(path)
        template = self.tokenizer.chat_template
        self.replies = ServedFormat.served(SimpleNamespace(tokenizer=self.tokenizer), template)
        self.turns = KeptTurns(1 << 20, 1 << 20)

    def prompt(self, messages):
        """The prompt with the turns in it, and their number."""
        self.replay = Replay(self.turns, self.replies, self.tokenizer, TOOLS, Call(Client("a", "a"), "1"))
        self.messages = messages
        shown = with_reasoning(messages, self.replies.template)
        self.ids, count = self.replay.put(self.tokenizer.encode_chat(shown, tools=TOOLS).token_ids, messages)
        return self.ids, count

    def answer(self, text, *, reason="stop", stop=None, told=None):
        """Writes an answer, each letter a token of its own; gives its tokens.

        `stop`: the stop string that ends it; `told`: what of it the client is told then.
        """
        ids = []
        for id_ in self.tokenizer.encode(text, add_special=False, parse_special=True):
            letters = self.tokenizer.decode([id_])
            split = not self.tokenizer.is_special(id_) and letters.isalpha()
            ids += [self.encode(letter) for letter in letters] if split else [id_]
        told = text if told is None else told
        params = SamplingParams(skip_special_tokens=False, stop=stop)
        beginning = self.replay.beginning(self.ids, self.messages, {})
        form, begun = self.replies, self.tokenizer.decode(self.ids)
        reader = Reader(form, TOOLS, begun, keep=self.replay.recorder(beginning, params).add)
        reader.read(CompletionOutput(0, told, ids, reason, stop, None, None, None))
        return ids

    def encode(self, letter):
        (id_,) = self.tokenizer.encode(letter, add_special=False)
        return id_


@pytest.fixture(scope="module")
def model(tiny_model, tmp_path_factory):
    """Makes a model of a form."""
    folder = tmp_path_factory.mktemp("forms")
    paths = {}

    def made(form):
        if form not in paths:
            paths[form] = model_of(form, folder, tiny_model, TURNS.get(form, ()))
        return Model(paths[form])

    return made


QUESTION = {"role": "user", "content": "Weather?"}
CALL = {"id": "123456789", "type": "function",
        "function": {"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}}  # fmt: skip
RESULT = {"role": "tool", "tool_call_id": "123456789", "name": "get_weather", "content": "sunny"}


def contains(ids, part):
    """Whether a list of tokens has another one in it."""
    return any(ids[at : at + len(part)] == part for at in range(len(ids)))


@pytest.mark.parametrize("form", CALLS)
def test_calls_of_every_form(model, form):
    """C18: other white space, another order of the arguments and other tokens than the template's."""
    model = model(form)
    before, _ = model.prompt([QUESTION])
    ids = model.answer(CALLS[form])
    turn = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    later, count = model.prompt([QUESTION, turn, RESULT])
    assert (count, later[: len(before)]) == (1, before)
    ends = model.tokenizer.eos_token_ids
    assert later[len(before) :][: len(ids) - 1] == ids[:-1]
    assert later[len(before) + len(ids) - 1] in (ids[-1], *ends)
    assert not contains(model.tokenizer.encode_chat([QUESTION, turn, RESULT], tools=TOOLS).token_ids, ids[:-1])


@pytest.mark.parametrize("form", REASONING)
def test_reasoning_of_every_form(model, form):
    """C18: reasoning comes back where the template shows it, and not where it drops it."""
    model = model(form)
    before, _ = model.prompt([QUESTION])
    begun = model.tokenizer.decode(before)
    text = REASONING[form] + CALLS[form]
    if begun.endswith("<think>\n"):
        text = text.removeprefix("<think>")
    ids = model.answer(text)
    turn = {"role": "assistant", "content": "", "reasoning_content": "Rain?", "tool_calls": [CALL]}
    later, count = model.prompt([QUESTION, turn, RESULT])
    assert (count, later[: len(before) + len(ids) - 1]) == (1, before + ids[:-1])
    # Without them, or with others, the turn is another.
    for change in ({}, {"reasoning_content": "Snow?"}):
        other = {name: value for name, value in turn.items() if name != "reasoning_content"} | change
        assert model.prompt([QUESTION, other, RESULT])[1] == 0
    answered = [QUESTION, turn, RESULT, {"role": "assistant", "content": "Sunny."}, QUESTION]
    later, count = model.prompt(answered)
    assert (count, later) == (0, model.tokenizer.encode_chat(answered, tools=TOOLS).token_ids)


def test_tokens_of_an_answer_end_where_it_does(model):
    """C18: a stop string may end within a token; the rest of the text is cut anew."""
    model = model("llama")
    before, _ = model.prompt([QUESTION])
    ids = model.answer("I see the sky.", stop="e s", told="I see th")
    later, count = model.prompt([QUESTION, {"role": "assistant", "content": "I see th"}, QUESTION])
    assert (count, later[: len(before)]) == (1, before)
    kept = later[len(before) : later.index(model.tokenizer.eos_token_ids[-1], len(before))]
    assert model.tokenizer.decode(kept) == "I see th"
    # The token of ` the` is not whole.
    assert kept[:-1] == ids[: len(kept) - 1] != kept[1:]


@pytest.mark.parametrize(("reason", "kept"), [("stop", 1), ("length", 1), ("abort", 0), ("timeout", 0), ("error", 0)])
def test_what_has_no_end_is_not_kept(model, reason, kept):
    """C18: of an answer that broke off, the client may have more or less than the engine."""
    model = model("llama")
    model.prompt([QUESTION])
    model.answer("Hello", reason=reason)
    assert model.prompt([QUESTION, {"role": "assistant", "content": "Hello"}, QUESTION])[1] == kept


def beginning(client, prompt):
    return Beginning(client, bytes([prompt]), prompt, (1, 2), "", "", "")


KEPT = st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 3), st.integers(0, 40))


@given(st.lists(KEPT, max_size=60), st.integers(0, 4 * OVERHEAD), st.integers(0, 8 * OVERHEAD))
def test_kept_turns_are_bounded(turns, most, most_of_all):
    """C18: for each client and in total; what was used last stays, and none is another client's."""
    kept, order = KeptTurns(most, most_of_all), []
    for client, prompt, said, length in turns:
        told = Told(b"t", bytes([said]))
        kept.put(beginning(client, prompt), told, [said] * length, 0)
        size = 4 * (2 + length) + OVERHEAD
        if size > min(most, most_of_all):
            continue
        order = [one for one in order if one[:3] != (client, prompt, said)] + [(client, prompt, said, size, length)]
        while sum(one[3] for one in order if one[0] == client) > most:
            order.remove(next(one for one in order if one[0] == client))
        while sum(one[3] for one in order) > most_of_all:
            order.pop(0)
    assert kept.num_bytes == sum(one[3] for one in order)
    for client in "abc":
        assert kept.marks(client) == {one[1] for one in order if one[0] == client}
        for prompt in range(4):
            for said in range(4):
                found = kept.get(client, bytes([prompt]), bytes([said]), {b"t"})
                expected = [[1, 2] + [said] * one[4] for one in order if one[:3] == (client, prompt, said)]
                assert ([] if found is None else [found.tolist()]) == expected
                assert kept.get(client, bytes([prompt]), bytes([said]), {b"other"}) is None
