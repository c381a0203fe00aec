"""Chat templates: as Jinja renders them, files with broken ones, and the arguments of a chat."""

import inspect
import json
import lzma
import typing

import jinja_environment
import jinja_golden
import pytest
from jinja_golden import CASES, MESSAGES
from jinja_small_cases import CHANGING_CASES
from rocmforge import LLM, AsyncLLM, InvalidRequestError, ModelFileError, SamplingParams, Tokenizer
from tiny_models import metadata, rewritten

SHORT = SamplingParams(max_tokens=2, ignore_eos=True, temperature=0.0)


@pytest.fixture(scope="module")
def jinja():
    return jinja_environment.environment()


@pytest.fixture(scope="module")
def model(tiny_model):
    return tiny_model("arch/llama_tied")


@pytest.fixture(scope="module")
def tokenizer(model):
    return Tokenizer(model)


def test_templates_render_as_jinja_renders_them(tokenizer, jinja):
    """A2: the operators, filters, tests, methods and white space of chat templates are Jinja's."""
    changing = jinja_environment.environment(changes_lists=True)
    differ = []
    for source in [*CASES, *CHANGING_CASES]:
        expected = jinja_golden.render(changing if source in CHANGING_CASES else jinja, source)
        try:
            rendered = tokenizer.apply_chat_template(MESSAGES, chat_template=source)
        except InvalidRequestError:
            rendered = None
        if rendered != expected:
            differ.append((source, rendered, expected))
    assert differ == []


def test_the_kept_renderings_are_those_of_jinja():
    """The Rust tests read them. `PYTHONPATH=tests python tests/templates/jinja_golden.py` writes them anew."""
    assert json.loads(lzma.decompress(jinja_golden.GOLDEN.read_bytes())) == jinja_golden.golden()


def test_long_integers_are_written_exactly(tokenizer, jinja):
    """A20: as Python writes them, in messages, tools and variables."""
    number = 12345678901234567890123456789012345678901234567890
    source = "{{ messages[0].n }} {{ tools|tojson }} {{ v }} {{ [v] }} {{ v|tojson }}"
    messages = [{"role": "user", "content": "", "n": -number}]
    rendered = tokenizer.apply_chat_template(
        messages, chat_template=source, tools=[{"maximum": number}], chat_template_kwargs={"v": 2**64}
    )
    assert rendered == jinja.from_string(source).render(messages=messages, tools=[{"maximum": number}], v=2**64)
    assert str(number) in rendered


GENERATION = "{% for m in messages %}{{ m.role }}:{% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}"
BROKEN = {"unknown_statement": "{% frobnicate %}", "too_long": "x" * (1 << 18), "unclosed": "{{ messages"}


def with_template(model, folder, template):
    assert "tokenizer.chat_template" not in metadata(model)
    return rewritten(model, folder / "model.gguf", extra={"tokenizer.chat_template": template})


def test_the_generation_tag_renders_its_body(model, jinja, tmp_path):
    """A2: templates for training mark the assistant's text with it."""
    with LLM(with_template(model, tmp_path, GENERATION), max_model_len=64, num_threads=1) as llm:
        rendered = llm.apply_chat_template(MESSAGES)
    assert rendered == jinja.from_string(GENERATION).render(messages=MESSAGES)
    assert "assistant:yy" in rendered


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_template_breaks_chat_alone(model, tmp_path, kind, assert_nothing_left):
    """A2: the model loads and generates, chat names the file, and another template can be given."""
    path = with_template(model, tmp_path, BROKEN[kind])
    with LLM(path, max_model_len=64, num_threads=1) as llm:
        assert len(llm.generate([5], SHORT, progress=False)[0].outputs[0].token_ids) == 2
        for use in (lambda: llm.chat(MESSAGES, SHORT, progress=False), lambda: llm.apply_chat_template(MESSAGES)):
            with pytest.raises(ModelFileError, match=r"model\.gguf: tokenizer\.chat_template: .*chat_template"):
                use()
        (output,) = llm.chat(MESSAGES, SHORT, progress=False, chat_template="{{ messages[0].content }}")
        assert output.prompt == "x"
        assert_nothing_left(llm)
    with pytest.raises(ModelFileError, match=r"tokenizer\.chat_template"):
        Tokenizer(path).apply_chat_template(MESSAGES)


def test_the_text_of_the_template_is_there(model, tmp_path):
    """Who parses what the model writes finds the form in it, whether or not the template can be rendered."""
    assert Tokenizer(model).chat_template is None
    for number, template in enumerate((GENERATION, *BROKEN.values())):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert Tokenizer(with_template(model, folder, template)).chat_template == template


def test_a_doubling_template_ends_in_an_error(tokenizer):
    """A2: it is refused before its memory is asked for, which a limit of the system would answer by an abort."""
    source = "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"
    with pytest.raises(InvalidRequestError, match="memory"):
        tokenizer.apply_chat_template(MESSAGES, chat_template=source)


@pytest.mark.parametrize("method", [LLM.chat, LLM.apply_chat_template, AsyncLLM.chat])
def test_the_arguments_of_a_chat_are_those_of_vllm(method):
    (options,) = typing.get_args(typing.get_type_hints(method)["options"])
    names = set(inspect.signature(method).parameters) | set(typing.get_type_hints(options))
    assert names >= {
        "messages",
        "add_generation_prompt",
        "continue_final_message",
        "tools",
        "chat_template",
        "chat_template_content_format",
        "chat_template_kwargs",
    }


def test_unknown_arguments_of_a_chat_are_errors(model, tokenizer):
    """A misspelled argument does not become a variable of the template."""
    misspelled = {"add_generation_promt": False}
    with LLM(model, max_model_len=64, num_threads=1) as llm:
        for use in (llm.chat, llm.apply_chat_template, tokenizer.encode_chat, tokenizer.apply_chat_template):
            with pytest.raises(TypeError, match="add_generation_promt"):
                use(MESSAGES, **misspelled)
        with pytest.raises(InvalidRequestError, match="'messages'"):
            llm.apply_chat_template(MESSAGES, chat_template="x", chat_template_kwargs={"messages": []})
        (output,) = llm.chat(MESSAGES, SHORT, use_tqdm=False, chat_template="{{ messages[0].content }}")
        assert output.finished


def test_a_final_message_is_continued(tokenizer):
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}"
    options = {"chat_template": template, "continue_final_message": True}
    continued = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=False, **options)
    assert continued == "[user]x[end][assistant]yy"
    prompt = tokenizer.encode_chat(MESSAGES, add_generation_prompt=False, **options)
    assert prompt.text == continued
    assert prompt.token_ids == tokenizer.encode(continued, add_special=False)
    with pytest.raises(InvalidRequestError, match="add_generation_prompt"):
        tokenizer.apply_chat_template(MESSAGES, **options)


def test_content_parts_for_templates_that_take_strings(tokenizer):
    template = "{{ messages[0].content }}"
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]

    def render(messages, **options):
        return tokenizer.apply_chat_template(messages, chat_template=template, **options)

    assert render(parts) == render(parts, chat_template_content_format="string") == "a\nb"
    assert render(MESSAGES, chat_template_content_format="openai") == "[{'type': 'text', 'text': 'x'}]"
    with pytest.raises(InvalidRequestError, match="chat_template_content_format"):
        render(parts, chat_template_content_format="xml")
    with pytest.raises(InvalidRequestError, match="image_url"):
        render([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])
