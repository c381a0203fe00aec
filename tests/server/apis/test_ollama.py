"""Ollama's API with Ollama's own client, against what the engine says in this process."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import httpx
import jinja2
import ollama
import pytest
from conftest import ON_GPU
from rocmforge import LLM, SamplingParams, Tokenizer
from rocmforge.server.ollama.model_file import model_file
from server_process import serving

import gguf

GREEDY = {"temperature": 0}
HELLO = [{"role": "user", "content": "Say hello to the world."}]
SYSTEM = {"role": "system", "content": "Answer in French."}
# The most likely text goes on for longer than any test.
LONG = {"model": "small", "prompt": "The sky is", "raw": True, "options": {"temperature": 0, "num_predict": 1900}}


@pytest.fixture(scope="module")
def llm(smollm2_path):
    with LLM(smollm2_path, max_model_len=2048) as llm:
        yield llm


@pytest.fixture(scope="module")
def server(smollm2_path, tmp_path_factory):
    names = ["--served-model-name", "small", "--served-model-name", "other:tag"]
    with serving(tmp_path_factory.mktemp("log"), smollm2_path, "--max-model-len", 2048, *names) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with ollama.Client(server.url) as client:
        yield client


@pytest.fixture(scope="module")
def tiny_server(long_model, tmp_path_factory):
    """A server that wants a key, of a model without a chat template."""
    arguments = ["--num-threads", 1, "--api-key", "secret", "--max-model-len", 256]
    with serving(tmp_path_factory.mktemp("log"), long_model, *arguments, headers={"x-api-key": "secret"}) as server:
        yield server


@pytest.fixture(scope="module")
def tiny_client(tiny_server):
    with ollama.Client(tiny_server.url, headers={"authorization": "Bearer secret"}) as client:
        yield client


def params(max_tokens, **more):
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, **more)


def expected_chat(llm, max_tokens, messages=HELLO, **more):
    (output,) = llm.chat(messages, params(max_tokens), **more)
    return output.outputs[0]


def recent(text):
    return abs(datetime.now(UTC) - datetime.fromisoformat(text)) < timedelta(minutes=2)


def test_chat(client, llm, server):
    expected = expected_chat(llm, 12)
    answer = client.chat("small", HELLO, options=GREEDY | {"num_predict": 12})
    assert (answer.message.role, answer.message.content) == ("assistant", expected.text)
    assert (answer.model, answer.done, answer.done_reason) == ("small", True, "length")
    assert recent(answer.created_at)
    prompt = llm.apply_chat_template(HELLO)
    assert answer.prompt_eval_count == len(llm.tokenize(prompt, parse_special=True))
    assert answer.eval_count == len(expected.token_ids) == 12
    # Nanoseconds: 12 tokens of a small model take milliseconds.
    assert 0 <= answer.load_duration < answer.total_duration
    assert 1_000_000 < answer.eval_duration < 60_000_000_000
    assert 100_000 < answer.prompt_eval_duration < 60_000_000_000
    assert answer.total_duration >= answer.prompt_eval_duration + answer.eval_duration
    server.settled()


def test_chat_stream_is_the_whole(client, llm):
    expected = expected_chat(llm, 12)
    *pieces, last = client.chat("small", HELLO, options=GREEDY | {"num_predict": 12}, stream=True)
    assert "".join(piece.message.content for piece in pieces) == expected.text
    assert len(pieces) > 1
    assert not any(piece.done for piece in pieces)
    assert (last.done, last.done_reason, last.message.content) == (True, "length", "")
    assert last.eval_count == 12
    assert last.total_duration >= last.prompt_eval_duration + last.eval_duration > 0


def test_a_stream_is_lines_of_json(server):
    """It streams unless told not to, as Ollama does."""
    body = {"model": "small", "messages": HELLO, "options": GREEDY | {"num_predict": 2}}
    response = server.client.post("/api/chat", json=body)
    assert response.headers["content-type"] == "application/x-ndjson"
    lines = response.text.splitlines()
    assert [json.loads(line)["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert response.text.endswith("}\n")


async def test_async_client(server, llm):
    texts = [f"Count to {number}." for number in range(1, 7)]
    expected = [expected_chat(llm, 8, [{"role": "user", "content": text}]).text for text in texts]
    client = ollama.AsyncClient(server.url)

    async def ask(text, stream):
        messages = [{"role": "user", "content": text}]
        answer = await client.chat("small", messages, options=GREEDY | {"num_predict": 8}, stream=stream)
        if not stream:
            return answer.message.content
        return "".join([piece.message.content async for piece in answer])

    for stream in (False, True):
        assert await asyncio.gather(*(ask(text, stream) for text in texts)) == expected
    await client.close()


def test_a_conversation(client, llm):
    messages = [SYSTEM, *HELLO, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Again."}]
    expected = expected_chat(llm, 8, messages)
    answer = client.chat("small", messages, options=GREEDY | {"num_predict": 8})
    assert answer.message.content == expected.text


def test_an_assistants_last_message_is_gone_on_with(client, llm):
    messages = [*HELLO, {"role": "assistant", "content": "Hello, dear"}]
    expected = expected_chat(llm, 8, messages, add_generation_prompt=False, continue_final_message=True)
    answer = client.chat("small", messages, options=GREEDY | {"num_predict": 8})
    assert answer.message.content == expected.text


def test_generate(client, llm):
    prompt = HELLO[0]["content"]
    options = GREEDY | {"num_predict": 12}
    assert client.generate("small", prompt, options=options).response == expected_chat(llm, 12).text
    expected = expected_chat(llm, 12, [SYSTEM, *HELLO]).text
    assert client.generate("small", prompt, system=SYSTEM["content"], options=options).response == expected
    *pieces, last = client.generate("small", prompt, options=options, stream=True)
    assert "".join(piece.response for piece in pieces) == expected_chat(llm, 12).text
    assert (last.done, last.done_reason, last.response, last.eval_count) == (True, "length", "", 12)


def test_generate_raw(client, llm):
    """A raw prompt spells control tokens; without a template it goes on with the text."""
    options = GREEDY | {"num_predict": 12}
    raw = llm.apply_chat_template(HELLO)
    answer = client.generate("small", raw, raw=True, options=options)
    assert answer.response == expected_chat(llm, 12).text
    (expected,) = llm.generate("The sky is", params(12))
    assert client.generate("small", "The sky is", raw=True, options=options).response == expected.outputs[0].text


def test_a_model_without_a_template_goes_on_with_the_text(tiny_client, long_model):
    assert not Tokenizer(long_model).has_chat_template
    with LLM(long_model, max_model_len=256, num_threads=1) as llm:
        (expected,) = llm.generate("ab", params(5))
    answer = tiny_client.generate("long", "ab", options=GREEDY | {"num_predict": 5})
    assert answer.response == expected.outputs[0].text
    with pytest.raises(ollama.ResponseError, match="template"):
        tiny_client.generate("long", "ab", system="b")


def test_options_reach_the_engine(client, llm):
    def answer(**options):
        return client.generate("small", "The sky is", raw=True, options={"num_predict": 12, **options})

    def expected(max_tokens=12, **more):
        (output,) = llm.generate("The sky is", SamplingParams(max_tokens=max_tokens, **more))
        return output.outputs[0].text

    whole = expected(temperature=0.0)
    stop = whole.split()[2]
    stopped = answer(temperature=0, stop=[stop])
    assert stopped.response == whole[: whole.index(stop)]
    assert stopped.done_reason == "stop"
    for theirs, ours in (
        ({"repeat_penalty": 1.9, "repeat_last_n": -1}, {"repetition_penalty": 1.9}),
        ({"presence_penalty": 1.5}, {"presence_penalty": 1.5}),
        ({"frequency_penalty": 1.5}, {"frequency_penalty": 1.5}),
    ):
        assert answer(temperature=0, **theirs).response == expected(temperature=0.0, **ours)
    # The rest is as Ollama has it.
    assert answer(seed=5).response == expected(seed=5, temperature=0.8, top_k=40, top_p=0.9)
    given = {"seed": 5, "temperature": 1.5, "top_k": 100, "top_p": 0.95, "min_p": 0.01}
    assert answer(**given, num_ctx=2048).response == expected(**given)
    assert answer(seed=5, temperature=1.9, top_k=1).response == whole


def test_tokens_without_a_limit(client, llm):
    (expected,) = llm.chat(HELLO, params(None))
    assert expected.outputs[0].finish_reason == "stop"
    for options in (GREEDY, GREEDY | {"num_predict": -1}, GREEDY | {"num_predict": -2}):
        answer = client.chat("small", HELLO, options=options, keep_alive="5m")
        assert answer.message.content == expected.outputs[0].text
        assert answer.done_reason == "stop"


def test_logprobs(client, llm):
    (expected,) = llm.generate("The sky is", params(4, logprobs=2))
    positions = [list(position.values()) for position in expected.outputs[0].logprobs]
    asked = {"raw": True, "options": GREEDY | {"num_predict": 4}, "logprobs": True, "top_logprobs": 2}
    found = client.generate("small", "The sky is", **asked).logprobs
    assert [one.token for one in found] == [position[0].decoded_token for position in positions]
    assert [one.logprob for one in found] == pytest.approx([position[0].logprob for position in positions])
    for one, position in zip(found, positions, strict=True):
        best = sorted(position, key=lambda entry: entry.rank)[:2]
        assert [entry.token for entry in one.top_logprobs] == [entry.decoded_token for entry in best]
    pieces = client.generate("small", "The sky is", stream=True, **asked)
    assert [one.token for piece in pieces for one in piece.logprobs or []] == [one.token for one in found]


def test_no_prompt_says_that_the_model_is_loaded(client, server):
    before = server.stats()["generated_tokens"]
    answer = client.generate("small")
    assert (answer.response, answer.done, answer.done_reason) == ("", True, "load")
    answer = client.chat("small", [], keep_alive=-1)
    assert (answer.message.content, answer.done, answer.done_reason) == ("", True, "load")
    assert server.stats()["generated_tokens"] == before


def test_names(client):
    options = {"num_predict": 1}
    for name in ("small", "small:latest", "other:tag"):
        assert client.generate(name, "a", options=options).model == name
    for name in ("large", "other", "small:tag"):
        with pytest.raises(ollama.ResponseError, match="expected one of those that are served") as refused:
            client.generate(name, "a", options=options)
        assert refused.value.status_code == 404


def test_list_and_ps(client, smollm2_path, server):
    listed = client.list().models
    assert [one.model for one in listed] == ["small:latest", "other:tag"]
    for one in listed:
        assert one.modified_at.timestamp() == pytest.approx(smollm2_path.stat().st_mtime, abs=1e-3)
        assert len(one.digest) == 64
        details = one.details
        assert (details.format, details.family, details.families) == ("gguf", "llama", ["llama"])
        # Ollama's own library says so of smollm2:135m.
        assert details.parameter_size == "134.52M"
        assert details.quantization_level == "Q4_1"
    loaded = client.ps().models
    assert [one.name for one in loaded] == ["small:latest", "other:tag"]
    for one in loaded:
        assert one.size == server.client.get("/v1/engine/memory").json()["total"]
        assert one.size_vram == (one.size if ON_GPU else 0)
        assert one.context_length == 2048
        assert one.expires_at.year == 9999
        assert one.digest == listed[0].digest


def test_show(client, llm):
    answer = client.show("small")
    rendered = jinja2.Template(answer.template).render(messages=HELLO, add_generation_prompt=True)
    assert rendered == llm.apply_chat_template(HELLO)
    assert answer.license == "apache-2.0"
    assert answer.capabilities == ["completion"]
    assert answer.parameters == ""
    assert answer.modelinfo["llama.block_count"] == 30
    with pytest.raises(ollama.ResponseError, match="expected one of those that are served"):
        client.show("large")


def test_a_file_is_described_as_it_is(tiny_client, tiny_server, long_model):
    reader = gguf.GGUFReader(long_model)
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    lists = [name for name, value in fields.items() if isinstance(value, list)]
    assert lists
    num_parameters = sum(int(tensor.n_elements) for tensor in reader.tensors)
    (listed,) = tiny_client.list().models
    assert listed.size == sum(int(tensor.n_bytes) for tensor in reader.tensors)
    info = tiny_client.show("long").modelinfo
    assert info == fields | dict.fromkeys(lists) | {"general.parameter_count": num_parameters}
    verbose = tiny_server.client.post("/api/show", json={"model": "long:latest", "verbose": True}).json()
    assert verbose["model_info"] == fields | {"general.parameter_count": num_parameters}


def test_digests_tell_files_apart(model, smollm2_path, tmp_path):
    copy, other = tmp_path / "copy.gguf", tmp_path / "other.gguf"
    data = model.read_bytes()
    copy.write_bytes(data)
    other.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert model_file(copy).digest == model_file(model).digest != model_file(other).digest


def test_version(server):
    assert server.client.get("/api/version").json() == server.client.get("/version").json()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"options": {"top_p": 2.0}}, "options.top_p: got 2"),
        ({"options": {"repeat_penalty": -1}}, "options.repeat_penalty: got -1"),
        (
            {"options": {"repeat_last_n": 64, "repeat_penalty": 1.1}},
            "options.repeat_last_n: got 64, expected -1 or 0: penalties (repeat_penalty)",
        ),
        ({"options": {"mirostat": 1}}, "options.mirostat: got 1, expected 0"),
        ({"options": {"mirostat": 2, "num_gpu": 3}}, "options.mirostat: got 2, expected 0"),
        ({"options": {"typical_p": 0.5}}, "options.typical_p: got 0.5"),
        ({"options": {"num_predict": 0}}, "options.num_predict: got 0, expected at least 1"),
        ({"options": {"num_predict": 2**64}}, "options.num_predict: got 18446744073709551616"),
        ({"options": {"stop": ["a"] * 17}}, "options.stop: got 17, expected at most 16"),
        ({"format": "yaml"}, "format: got 'yaml'"),
        ({"format": {"type": "object", "properties": 5}}, "format: got json that is refused"),
        ({"think": True}, "think: the model does not think"),
        ({"think": "high"}, "think: the model's chat template knows no efforts"),
        ({"keep_alive": "9" * 400 + "h"}, "keep_alive: got '999"),
        ({"keep_alive": "soon"}, "keep_alive: got 'soon', expected seconds"),
        ({"surprise": 1}, "surprise: this parameter is not supported"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs: got 21, expected at most 20"),
        ({"model": None}, "model: it is missing"),
    ],
)
def test_errors_name_the_parameter(server, change, named):
    bodies = {"/api/generate": {"model": "small", "prompt": "a"}, "/api/chat": {"model": "small", "messages": HELLO}}
    for path, body in bodies.items():
        response = server.client.post(path, json=body | change)
        assert response.status_code == 400
        assert response.json().keys() == {"error"}
        assert response.json()["error"].startswith(named)


def test_errors_of_the_client(client):
    """The client understands how it is refused what the engine does not do."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    for call, named in (
        (lambda: client.chat("small", HELLO, tools=[tool]), "tools: "),
        (
            lambda: client.chat("small", [HELLO[0] | {"images": [b"x"]}]),
            "messages.0.images.0: this model accepts only text",
        ),
        (lambda: client.chat("small", [{"role": "king", "content": "a"}]), "messages.0.role: "),
        (lambda: client.chat("small", [{"role": "user", "content": "a " * 3000}]), "messages: got "),
        (lambda: client.generate("small", "a " * 3000), "prompt: got "),
        (lambda: client.generate("small", "a " * 3000, raw=True), "prompt length in tokens: got "),
        (lambda: client.generate("small", "a", suffix="b"), "suffix: "),
        (lambda: client.generate("small", "a", template="b"), "template: "),
        (lambda: client.generate("small", "a", context=[1]), "context: "),
        (lambda: client.generate("small", "a", system="b", raw=True), "body: "),
        (lambda: next(client.generate("small", "a", think=True, stream=True)), "think: "),
    ):
        with pytest.raises(ollama.ResponseError, match=f"^{named}") as refused:
            call()
        assert refused.value.status_code == 400
    # Empty values are what clients send for none.
    answer = client.generate("small", "a", suffix="", template="", format="", context=[], options={"num_predict": 1})
    assert answer.done
    assert client.chat("small", HELLO, tools=[], options={"num_predict": 1}).done


def test_a_form_is_json_but_not_from_a_page(server):
    """`curl -d` calls its body a form; a page of another site must not reach the engine with one."""
    body = json.dumps({"model": "small", "prompt": "a", "stream": False, "options": {"num_predict": 1}})
    headers = {"content-type": "application/x-www-form-urlencoded"}
    assert server.client.post("/api/generate", content=body, headers=headers).json()["done"]
    refused = server.client.post("/api/generate", content=body, headers=headers | {"origin": "https://a.example"})
    assert refused.status_code == 403
    assert server.client.post("/api/show", content=b'{"model": "small"}').status_code == 200


def test_a_client_that_leaves_a_stream(client, server):
    answer = client.generate(**LONG, stream=True)
    assert next(answer).response
    before = server.stats()
    assert before["num_running"] == 1
    answer.close()
    after = server.settled()
    # Some steps pass until the server hears of it; all 1,900 tokens would take a minute.
    assert after["generated_tokens"] - before["generated_tokens"] < 200


async def test_async_clients_that_leave(server):
    """Streams that are closed and answers whose task is cancelled: both give their blocks back."""
    client = ollama.AsyncClient(server.url)
    streams = [await client.generate(**LONG, stream=True) for _ in range(3)]
    for stream in streams:
        await anext(stream)
    tasks = [asyncio.create_task(client.generate(**LONG)) for _ in range(3)]
    # On a GPU the first may have ended before the last begins.
    while server.stats()["num_running"] < (1 if ON_GPU else 6):
        await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for stream in streams:
        await stream.aclose()
    server.settled()
    await client.close()


def test_the_end_of_a_server_ends_a_stream(smollm2_path, tmp_path):
    arguments = ["--max-model-len", 2048, "--served-model-name", "small", "--shutdown-timeout", 0]
    with serving(tmp_path, smollm2_path, *arguments) as server:
        with ollama.Client(server.url) as client:
            pieces = client.generate(**LONG, stream=True)
            next(pieces)
            server.process.terminate()
            *_, last = pieces
        assert (last.done, last.done_reason) == (True, "abort")
        assert server.process.wait(30) == 0


def test_keys(tiny_server, tiny_client):
    """Ollama's client sends its key as others do."""
    with ollama.Client(tiny_server.url) as client, pytest.raises(ollama.ResponseError, match="API key") as refused:
        client.list()
    assert refused.value.status_code == 401
    assert tiny_client.list().models
    assert httpx.get(f"{tiny_server.url}/api/tags").json().keys() == {"error"}
