"""Messages of chat models from Python: content, reasoning and tool calls, and tools that a template does not know."""

import json
import pickle

import pytest
from calling_model import MAX_TOKENS, MESSAGES, TEMPLATE, TOOLS
from rocmforge import LLM, AsyncLLM, CompletionOutput, InvalidRequestError, SamplingParams
from rocmforge.parsing import Message
from rocmforge.replies import MAX_FORMATS, ReplyFormats, ReplyReader

PARAMS = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0)
ASKED = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def llm(smollm2_path):
    with LLM(smollm2_path, max_model_len=1024, num_threads=2) as llm:
        yield llm


def check(message):
    assert message.reasoning_content == "The user wants the weather in Paris."
    assert message.content is None
    (call,) = message.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})


def test_an_answer_has_content_reasoning_and_calls(llm):
    (output,) = llm.chat(MESSAGES, PARAMS, chat_template=TEMPLATE, tools=TOOLS)
    one = output.outputs[0]
    check(one.message)
    assert "<tool_call>" in one.text
    # Another process has no tokenizer for it.
    check(pickle.loads(pickle.dumps(one)).message)
    *_, last = llm.stream_chat(MESSAGES, PARAMS, chat_template=TEMPLATE, tools=TOOLS)
    check(last.outputs[0].message)


async def test_asynchronous_answers_have_it_too(smollm2_path):
    async with AsyncLLM(smollm2_path, max_model_len=1024, num_threads=2) as engine:
        async for output in engine.chat(MESSAGES, PARAMS, chat_template=TEMPLATE, tools=TOOLS):
            last = output
        check(last.outputs[0].message)
        with pytest.raises(InvalidRequestError, match="tools: the model's chat template has no call format"):
            await anext(engine.chat(ASKED, PARAMS, tools=TOOLS))


def test_tools_that_the_template_drops_are_refused(llm):
    for ask in (llm.chat, llm.stream_chat):
        with pytest.raises(InvalidRequestError, match="tools: the model's chat template has no call format"):
            ask(ASKED, PARAMS, tools=TOOLS)
    assert llm.chat(ASKED, PARAMS.replace(max_tokens=1), tools=[])


def test_a_plain_prompt_is_answered_by_content_alone(llm):
    (output,) = llm.generate("<think>", PARAMS.replace(max_tokens=4))
    one = output.outputs[0]
    assert one.message == Message(one.text, None)
    assert pickle.loads(pickle.dumps(one)) == one


class Tokens:
    """A tokenizer whose texts for people lack the markers."""

    texts = ("<think>", "a", "</think>", "b", "c", "<end>")
    chat_template = "<think></think>"
    tool_use_template = chat_template

    def encode(self, text, **_):
        return [self.texts.index(text)] if text in self.texts else [0] * len(text)

    def is_special(self, token):
        return self.texts[token].startswith("<")

    def apply_chat_template(self, messages, **options):
        raise ValueError("it takes no conversation")

    def decode(self, ids):
        return "".join(self.texts[token] for token in ids)


@pytest.mark.parametrize(
    ("ids", "reason", "stop", "content"),
    [
        ([0, 1, 2, 3, 4], "length", None, "bc"),
        ([0, 1, 2, 3, 5], "stop", None, "b"),
        ([0, 1, 2, 3, 4], "stop", 4, "b"),
        ([0, 1, 2, 3, 4], "stop", "c", "b"),
    ],
)
def test_markers_that_are_control_tokens_are_read_from_the_token_ids(ids, reason, stop, content):
    formats = ReplyFormats(Tokens())
    one = CompletionOutput(0, "a" + content, ids, reason, stop, None, None)
    assert ReplyReader(formats, None, [], "").read(one) == Message(content, "a", [])


def test_only_the_last_formats_are_remembered():
    formats = ReplyFormats(Tokens())
    first = formats.of(None)
    assert formats.of(None) is first
    for number in range(MAX_FORMATS):
        formats.of(f"<think>{number}")
    assert formats.of(f"<think>{MAX_FORMATS - 1}").template == f"<think>{MAX_FORMATS - 1}"
    assert formats.of(None) == first
    assert formats.of(None) is not first


def test_logits_of_a_text(llm):
    text = "The capital of France"
    assert (llm.prompt_logits(text) == llm.prompt_logits(llm.tokenize(text))).all()
    assert llm.prompt_logits({"prompt": text}).shape[0] == len(llm.tokenize(text))
