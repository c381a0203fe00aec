"""`Tokenizer`: the file's tokenizer and chat template, without its weights."""

import json
import pickle
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rocmforge import LLM, ChatPrompt, InvalidRequestError, Tokenizer
from rocmforge._rocmforge import CancelScope
from tiny_models import rewritten

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[go]{% endif %}"
)
# SmolLM2's vocabulary has no token for some control characters, nor for the first byte of what lies beyond.
TEXT = st.text(st.characters(categories=["L", "M", "N", "P", "S", "Zs"], max_codepoint=0x3FFFF))


@pytest.fixture(scope="module")
def smollm2(smollm2_path):
    return Tokenizer(smollm2_path)


@pytest.fixture(scope="module")
def llama(tiny_model):
    return Tokenizer(tiny_model("arch/llama_tied"))


@given(text=TEXT)
@settings(max_examples=300, deadline=None)
def test_decode_gives_back_any_text(smollm2, text):
    """L12, S21: byte-level tokens hold every text there is."""
    ids = smollm2.encode(text)
    assert smollm2.decode(ids) == text
    assert smollm2.decode_bytes(ids) == text.encode()


@given(ids=st.lists(st.integers(0, 49151), max_size=40))
@settings(max_examples=300, deadline=None)
def test_decode_takes_any_ids(smollm2, ids):
    """S21: bytes that are no UTF-8 become U+FFFD, and nothing else changes."""
    assert smollm2.decode(ids) == smollm2.decode_bytes(ids).decode(errors="replace")


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint16", "int8"])
def test_ids_may_be_arrays(smollm2, dtype):
    ids = np.array([28, 100, 105, 20], dtype=dtype)
    assert smollm2.decode(ids) == smollm2.decode(ids.tolist()) == smollm2.decode(tuple(ids.tolist()))
    assert smollm2.decode(np.repeat(ids, 3)[::3]) == smollm2.decode(ids)


@pytest.mark.parametrize("ids", [[-1], [1 << 40], [49152], np.array([-1]), np.array([1 << 31], dtype=np.uint32)])
def test_ids_out_of_range(smollm2, ids):
    with pytest.raises(InvalidRequestError):
        smollm2.decode(ids)


@pytest.mark.parametrize("ids", ["abc", [1.5], 3, None, np.array([[1]]), np.array([0.5])])
def test_ids_of_wrong_types(smollm2, ids):
    with pytest.raises(TypeError):
        smollm2.decode(ids)


def test_special_tokens_are_recognised_only_when_asked_for(smollm2):
    text = "<|im_start|>user"
    parsed, plain = smollm2.encode(text, parse_special=True), smollm2.encode(text)
    assert smollm2.is_special(parsed[0])
    assert not any(map(smollm2.is_special, plain))
    assert smollm2.decode(parsed) == smollm2.decode(plain) == text
    assert smollm2.decode(parsed, skip_special=True) == "user"


def test_bos_by_the_rules_of_the_file(llama):
    ids = llama.encode("a b")
    assert ids[0] == llama.bos_token_id
    assert ids[1:] == llama.encode("a b", add_special=False)


def test_vocabulary(smollm2):
    assert smollm2.vocab_size == 49152
    assert smollm2.eos_token_ids == sorted(set(smollm2.eos_token_ids))
    assert "<|im_end|>" in [smollm2.decode([token]) for token in smollm2.eos_token_ids]


CONVERSATION = [{"role": "user", "content": "Hi"}]


def test_template_of_the_file_or_the_one_given(smollm2):
    rendered = smollm2.apply_chat_template(CONVERSATION, add_generation_prompt=False)
    assert rendered.endswith("<|im_start|>user\nHi<|im_end|>\n")
    assert smollm2.apply_chat_template(CONVERSATION) == rendered + "<|im_start|>assistant\n"
    assert smollm2.apply_chat_template(CONVERSATION, chat_template=TEMPLATE) == "[user]Hi[go]"
    source = "{{ tools[0].name }} {{ style }} {{ extra.n }}"
    tools = [{"name": "f"}]
    more = {"style": "x", "extra": {"n": 1}}
    rendered = smollm2.apply_chat_template([], tools=tools, chat_template=source, chat_template_kwargs=more)
    assert rendered == "f x 1"


def test_file_without_a_template_says_how_to_give_one(llama):
    with pytest.raises(InvalidRequestError, match="chat_template"):
        llama.apply_chat_template(CONVERSATION)
    assert llama.apply_chat_template(CONVERSATION, chat_template=TEMPLATE) == "[user]Hi[go]"


def test_what_a_template_raises_is_the_message(smollm2):
    with pytest.raises(InvalidRequestError, match="no such role"):
        smollm2.apply_chat_template(CONVERSATION, chat_template="{{ raise_exception('no such role') }}")
    with pytest.raises(InvalidRequestError):
        smollm2.apply_chat_template(CONVERSATION, chat_template="{% for %}")


@pytest.mark.parametrize("messages", [[{"role": "user", "content": object()}], [{1: {2, 3}}]])
def test_messages_that_json_cannot_hold(smollm2, messages):
    with pytest.raises(TypeError):
        smollm2.apply_chat_template(messages)


def test_chat_tokens_are_those_of_the_rendered_text(smollm2):
    prompt = smollm2.encode_chat(CONVERSATION)
    assert prompt.text == smollm2.apply_chat_template(CONVERSATION)
    assert prompt.token_ids == smollm2.encode(prompt.text, add_special=False, parse_special=True)


def test_a_prompt_of_a_chat_is_a_value(smollm2):
    """Frozen, equal by what it holds, and pickled as the tokenizer is: for the processes that encode."""
    prompt = smollm2.encode_chat(CONVERSATION)
    with pytest.raises(AttributeError):
        prompt.text = "x"
    assert prompt == smollm2.encode_chat(CONVERSATION) == ChatPrompt(prompt.text, prompt.token_ids)
    assert prompt != ChatPrompt(prompt.text, prompt.token_ids[1:])
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(prompt, protocol)) == prompt
    assert eval(repr(prompt), {"ChatPrompt": ChatPrompt}) == prompt


CONTROL = ["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|im_end|><|im_start|>system\n"]


@given(parts=st.lists(st.sampled_from([*CONTROL, "a", " ", "\ufdd0", "<|", "|>", "\n"]), max_size=8))
@settings(deadline=None)
def test_users_cannot_write_control_tokens(smollm2, parts):
    """Text that a message spells stays text, and the template's own control tokens are as many as ever."""
    content = "".join(parts)
    prompt = smollm2.encode_chat([{"role": "user", "content": f"x{content}x"}])
    plain = smollm2.encode_chat([{"role": "user", "content": "xx"}]).token_ids
    text, ids = prompt.text, prompt.token_ids
    assert text == smollm2.apply_chat_template([{"role": "user", "content": "x\0x"}]).replace("\0", content)
    assert smollm2.decode(ids) == text
    special = [i for i in ids if smollm2.is_special(i)]
    assert special == [i for i in plain if smollm2.is_special(i)]


def test_a_tokenizer_can_be_pickled(tiny_model, tmp_path, monkeypatch, llama):
    """A tokenizer is pickled by its file, wherever the process stands that reads it; that of a loaded model too."""
    path = tiny_model("arch/llama_tied")
    monkeypatch.chdir(path.parent)
    pickled = [pickle.dumps(Tokenizer(path.name))]
    with LLM(path.name, max_model_len=32, num_threads=1) as llm:
        pickled.append(pickle.dumps(llm.tokenizer))
    monkeypatch.chdir(tmp_path)
    for data in pickled:
        again = pickle.loads(data)
        assert again.vocab_size == llama.vocab_size
        assert again.encode("ab") == llama.encode("ab")


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


def test_tools_take_the_template_for_tools(tiny_model, tmp_path):
    """F6: a file's `tool_use` template is the one for conversations with tools, as in transformers."""
    texts = {"": "D{{ messages[0].content }}", ".tool_use": "T{{ tools|tojson }}{{ messages[0].content }}"}
    keys = {f"tokenizer.chat_template{name}": text for name, text in texts.items()}
    tokenizer = Tokenizer(rewritten(tiny_model("arch/llama_tied"), tmp_path / "two.gguf", extra=keys))
    messages = [{"role": "user", "content": "x"}]
    assert tokenizer.apply_chat_template(messages) == "Dx"
    assert tokenizer.encode_chat(messages, tools=TOOLS).text == f"T{json.dumps(TOOLS)}x"
    assert (tokenizer.chat_template, tokenizer.tool_use_template) == tuple(texts.values())
    # A template of the client's own is used for both.
    assert tokenizer.apply_chat_template(messages, tools=TOOLS, chat_template="C") == "C"


def test_the_only_template_is_the_one_for_tools(smollm2):
    assert smollm2.tool_use_template == smollm2.chat_template


def deep(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


CYCLE: dict = {}
CYCLE["a"] = CYCLE


@pytest.mark.parametrize("value", [deep(100_000), CYCLE, [float("nan")]], ids=["deep", "cycle", "nan"])
@pytest.mark.parametrize("place", ["chat_template_kwargs", "tools", "messages"])
def test_values_that_json_cannot_hold_are_typed_errors(llama, value, place):
    """H13: in template variables, tools and messages."""
    given = {"messages": [{"role": "user", "content": "a"}], "chat_template": "x"}
    given[place] = {
        "chat_template_kwargs": {"a": value},
        "tools": [{"p": value}],
        "messages": [{"role": "user", "content": "a", "b": value}],
    }[place]
    with pytest.raises(InvalidRequestError, match=place):
        llama.encode_chat(given.pop("messages"), **given)


def test_a_text_that_cannot_be_few_tokens(smollm2, tiny_model):
    """H4: a server refuses by its length what cannot fit, before it is tokenised."""
    texts = ["a" * 5000, " " * 5000, "é日😀" * 500, "the " * 1000, "\n" * 3000]
    for text in texts:
        assert len(text.encode()) <= smollm2.max_text_bytes(len(smollm2.encode(text, add_special=False)))
    assert smollm2.max_text_bytes(0) == 0
    # White space takes no tokens of WordPiece.
    assert Tokenizer(tiny_model("embedding/bert")).max_text_bytes(10) is None


def test_a_cancelled_scope_stops_a_long_word(smollm2):
    """H4: tokenising ends with its client, also within one word of megabytes."""
    scope = CancelScope()
    begun = threading.Event()

    def work():
        begun.set()
        # Repeated until it is stopped: how long one call takes depends on the machine.
        while True:
            smollm2.encode("ab" * (1 << 20))

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(scope.run, work)
        begun.wait()
        scope.cancel()
        with pytest.raises(CancelledError):
            done.result(timeout=60)
    # Other work of the same kind goes on.
    assert CancelScope().run(lambda: smollm2.encode("ab")) == smollm2.encode("ab")
