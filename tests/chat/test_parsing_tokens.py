"""Markers that are control tokens, which texts lack unless they are asked for, and the token that ends a text."""

import pytest
from marked_models import model_of
from parsing_cases.formats import FORMATS, TOOLS, template
from rocmforge import LLM, SamplingParams, Tokenizer
from rocmforge.parsing import ChatFormat, Markers, OutputParser, ReplyFormat, gather
from tiny_models import metadata, rewritten

TOKENS = "tokenizer.ggml.tokens"
NAMES = (
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
    "Qwen-Qwen3-0.6B",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "google-gemma-4-E2B-it",
    "openai-gpt-oss-20b",
)
SPELLED = {"<|start_header_id|>": "<|python_tag|>", "<|end_header_id|>": "<think>"}


@pytest.fixture(scope="module")
def marked(tiny_model, tmp_path_factory):
    """A tiny model two of whose control tokens are spelled as markers."""
    model = tiny_model("quant_models/Q4_0")
    tokens = [SPELLED.get(token, token) for token in metadata(model)[TOKENS]]
    return rewritten(model, tmp_path_factory.mktemp("marked") / "marked.gguf", replace={TOKENS: tokens})


def test_control_tokens_are_needed_where_markers_are_some(marked, tiny_model):
    tokenizer, plain = Tokenizer(marked), Tokenizer(tiny_model("quant_models/Q4_0"))
    needed = {name for name, form in FORMATS.items() if form.needs_special_tokens(tokenizer)}
    # The model has the markers of thinking with `<think>` and of Llama's calls.
    assert needed == {"hermes", "qwen-xml", "glm", "llama"}
    assert not any(form.needs_special_tokens(plain) for form in FORMATS.values())
    assert not ChatFormat().needs_special_tokens(tokenizer)


@pytest.mark.parametrize(
    ("form", "control", "closing", "switches"),
    [
        ("hermes", False, "</think>", True),
        ("llama", True, "", False),
        ("gemma4", True, "<channel|>", True),
        ("harmony", True, "<|end|>", False),
    ],
)
def test_the_reply_format_of_a_model_names_its_tokens(form, control, closing, switches, tiny_model, tmp_path):
    tokenizer = Tokenizer(model_of(form, tmp_path, tiny_model))
    found = ReplyFormat.of(tokenizer)
    assert (found.chat.calls, found.template) == (form, tokenizer.chat_template)
    assert (found.control_tokens, found.closing, found.switches_reasoning) == (control, closing, switches)
    ids = tokenizer.encode(closing, add_special=False, parse_special=True)
    assert found.end_of_reasoning == (ids[0] if closing else None)
    assert len(ids) == bool(closing)
    assert found.begin_token_id == (None if switches else found.end_of_reasoning)
    markers = Markers(tokenizer)
    assert markers.token("two tokens") is None
    expected = f"<[{found.end_of_reasoning}]>" if control and closing else f'"{closing}"'
    assert markers.grammar(closing) == expected


def test_another_template_has_another_reply_format(tiny_model, tmp_path):
    tokenizer = Tokenizer(model_of("hermes", tmp_path, tiny_model))
    plain, thinking = ReplyFormat.of(tokenizer, "{{ messages }}"), ReplyFormat.of(tokenizer, "<think></think>")
    assert (plain.chat, plain.thinks, plain.begin_token_id) == (ChatFormat(), False, None)
    assert (thinking.thinks, thinking.opening) == (True, "<think>\n")
    # This one always reasons.
    assert thinking.begin_token_id == thinking.end_of_reasoning == Markers(tokenizer).token("</think>")


WITHOUT_TOOLS = "{% for m in messages %}<s>{{ m.role }}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize("name", NAMES)
def test_the_template_for_tools_has_the_reply_format(tiny_model, tmp_path, name):
    """F6: markers of calls and of reasoning are found, although the file's other template has none of them."""
    keys = {"tokenizer.chat_template": WITHOUT_TOOLS, "tokenizer.chat_template.tool_use": template(name)}
    tokenizer = Tokenizer(rewritten(tiny_model("arch/llama_tied"), tmp_path / "two.gguf", extra=keys))
    found, alone = ReplyFormat.of(tokenizer), ReplyFormat.of(tokenizer, template(name))
    assert (found.chat, found.switches_reasoning) == (alone.chat, alone.switches_reasoning)
    assert found.chat.calls is not None


@pytest.mark.parametrize("skip", [True, False])
def test_the_end_token_is_no_part_of_a_text(marked, skip, assert_nothing_left):
    """Other control tokens are, if they are asked for."""
    tokenizer = Tokenizer(marked)
    (think,) = tokenizer.encode("<think>", add_special=False, parse_special=True)
    ends = tokenizer.eos_token_ids

    def text(token, **params):
        bias = SamplingParams(temperature=0.0, logit_bias={token: 100.0}, skip_special_tokens=skip, **params)
        (output,) = llm.generate([5], bias, progress=False)[0].outputs
        return output.text, output.token_ids, output.finish_reason

    with LLM(marked, max_model_len=64, num_threads=1) as llm:
        assert text(think, max_tokens=2) == ("" if skip else "<think><think>", [think, think], "length")
        for end in ends:
            written, token_ids, reason = text(end, max_tokens=4)
            assert (written, reason) == ("", "stop")
            assert token_ids in ([], [end])
        assert_nothing_left(llm)


def test_a_stream_of_the_engine_is_parsed(marked, assert_nothing_left):
    """The pieces of a stream, through a parser, make the whole text."""
    tokenizer = Tokenizer(marked)
    (think,) = tokenizer.encode("<think>", add_special=False, parse_special=True)
    params = {"max_tokens": 24, "temperature": 0.0, "skip_special_tokens": False, "ignore_eos": True}
    with LLM(marked, max_model_len=64, num_threads=1) as llm:
        prompt = [5, think]
        (whole,) = llm.generate([prompt], SamplingParams(**params), progress=False)[0].outputs
        parser = OutputParser(FORMATS["hermes"], TOOLS, tokenizer.decode(prompt))
        events = []
        for output in llm.stream([prompt], SamplingParams(**params, output_kind="delta")):
            events += parser.feed(output.outputs[0].text)
        message = gather(events + parser.finish())
        assert whole.text.strip() != ""
        assert message.reasoning_content == whole.text.strip(" \t\r\n")
        assert message.content is None
        assert_nothing_left(llm)
