"""Fields that Ollama's clients send beside the question: each has an answer, and none that is harmless is refused."""

import functools

import ollama
import openai
import pytest
from marked_models import marked
from ollama import _types as types
from rocmforge.parsing import ToolCallArguments, ToolCallStart
from rocmforge.server.ollama import bodies
from rocmforge.server.ollama.replies import OllamaReply
from server_process import serving

HELLO = [{"role": "user", "content": "Say hello."}]
GREEDY = {"temperature": 0, "num_predict": 8}
# Each would change the answer: models of pictures, templates and contexts of Ollama's own.
REFUSED = {
    bodies.OllamaGenerateRequest: {"template", "context", "width", "height", "steps"},
}
PAIRS = [
    (types.GenerateRequest, bodies.OllamaGenerateRequest),
    (types.ChatRequest, bodies.OllamaChatRequest),
    (types.EmbedRequest, bodies.OllamaEmbedRequest),
    (types.EmbeddingsRequest, bodies.OllamaEmbeddingsRequest),
    (types.PullRequest, bodies.OllamaPullRequest),
    (types.ShowRequest, bodies.OllamaShowRequest),
    (types.Options, bodies.OllamaOptions),
    (types.Options, bodies.OllamaEmbedOptions),
    (types.Message, bodies.OllamaMessage),
    (types.Message.ToolCall, bodies.OllamaCall),
    (types.Message.ToolCall.Function, bodies.OllamaFunction),
    (types.Tool, bodies.OllamaTool),
    (types.Tool.Function, bodies.OllamaToolFunction),
]


@pytest.mark.parametrize(("sent", "body"), PAIRS, ids=lambda each: each.__qualname__)
def test_every_field_has_an_answer(sent, body):
    """C19: a field that Ollama's client can send is read, has a reason to be ignored, or is refused by name."""
    left = set(sent.model_fields) - set(body.model_fields) - set(body.ignored)
    assert left == REFUSED.get(body, set()) & set(sent.model_fields)


@pytest.fixture(scope="module")
def server(smollm2_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("log")
    with serving(folder, smollm2_path, "--max-model-len", 512, "--served-model-name", "small") as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with ollama.Client(server.url) as client:
        yield client


@pytest.mark.parametrize(
    "options",
    [
        {"num_ctx": 32768},
        {"num_gpu": 99, "num_thread": 8, "num_batch": 512, "main_gpu": 0, "use_mmap": True, "low_vram": False},
        {"mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "typical_p": 1.0, "tfs_z": 1.0},
        {"repeat_last_n": 64},
        {"repeat_last_n": 64, "repeat_penalty": 1.0},
        {"repeat_last_n": 512, "repeat_penalty": 1.0},
        {"repeat_last_n": 0, "repeat_penalty": 1.5},
        {"num_keep": 24, "penalize_newline": True, "numa": False, "f16_kv": True},
    ],
)
def test_harmless_options_change_nothing(client, options):
    """C19: options of how a model is loaded, and those whose value is that of none."""
    plain = client.generate("small", "The sky is", raw=True, options=GREEDY)
    assert client.generate("small", "The sky is", raw=True, options=GREEDY | options).response == plain.response


def test_harmless_fields_change_nothing(server):
    """C19: nothing is cut here, whether the client allows it or not."""
    body = {"model": "small", "messages": HELLO, "stream": False, "options": GREEDY}
    plain = server.client.post("/api/chat", json=body).json()
    for more in ({"truncate": True, "shift": True}, {"truncate": False, "shift": False}, {"think": False}):
        answer = server.client.post("/api/chat", json=body | more)
        assert answer.json()["message"] == plain["message"], answer.text


def test_a_penalty_that_looks_back_at_everything(client):
    """C19: as many tokens as the context has are all of them."""
    asked = GREEDY | {"repeat_penalty": 1.9}
    whole = client.generate("small", "The sky is", raw=True, options=asked)
    for number in (-1, 512):
        answer = client.generate("small", "The sky is", raw=True, options=asked | {"repeat_last_n": number})
        assert answer.response == whole.response


def test_older_names(server):
    """C19: `name` in the place of `model`, and of `tool_name`."""
    shown = [server.client.post("/api/show", json={key: "small"}).json() for key in ("name", "model")]
    assert shown[0] == shown[1]
    response = server.client.post("/api/show", json={"name": "other"})
    assert (response.status_code, "got 'other'" in response.json()["error"]) == (404, True)
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    for key in ("name", "tool_name"):
        message = bodies.OllamaMessage.model_validate({"role": "tool", "content": "1", key: "f"})
        assert message.for_template(0)["name"] == "f"
        body = {"model": "small", "messages": [*HELLO, call, message.model_dump(exclude_none=True)], "stream": False}
        assert server.client.post("/api/chat", json=body | {"options": GREEDY}).status_code == 200


def test_calls_carry_ids():
    """C19: a client can say which call a result belongs to."""
    events = []
    for index, name in enumerate(("f", "g")):
        events += [ToolCallStart(index, f"call_{name}", name), ToolCallArguments(index, '{"a": 1}')]
    _, others = OllamaReply().add(events, ended=True)
    assert others["tool_calls"] == [
        {"id": f"call_{name}", "function": {"name": name, "arguments": {"a": 1}}} for name in ("f", "g")
    ]


def test_pull(client, server):
    """C23: a model that is served and on this machine is there at once; others are the operator's to choose."""
    statuses = [progress.status for progress in client.pull("small", stream=True)]
    assert (statuses[0], statuses[-1]) == ("pulling manifest", "success")
    assert client.pull("small:latest").status == "success"
    with pytest.raises(ollama.ResponseError, match="got 'llama3', expected one of those that are served: small") as no:
        client.pull("llama3")
    assert no.value.status_code == 404
    assert server.client.post("/api/pull", json={"name": "small", "stream": False}).json() == {"status": "success"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/create"),
        ("POST", "/api/copy"),
        ("POST", "/api/push"),
        ("DELETE", "/api/delete"),
        ("POST", "/api/blobs/sha256:00"),
    ],
)
def test_what_is_the_operators(server, method, path):
    """C23: an error in Ollama's form that says who can do it."""
    response = server.client.request(method, path, json={"model": "small"})
    assert response.status_code == 403
    assert "is the operator's choice" in response.json()["error"]


def test_status(server):
    """C23: there are no models of a cloud."""
    assert server.client.get("/api/status").json()["cloud"]["disabled"] is True


def test_a_text_between_two(client, tiny_model, tmp_path):
    """C19: the marks of the vocabulary stand around both texts; without such marks `suffix` is an error."""
    with pytest.raises(ollama.ResponseError, match="suffix: the model's vocabulary has no tokens to fill in"):
        client.generate("small", "def f():", suffix="return a")
    marks = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
    path = marked(tiny_model("quant_models/Q4_0"), tmp_path / "fim.gguf", control=marks)
    with serving(tmp_path, path, "--num-threads", 1) as other, ollama.Client(other.url) as own:
        between = own.generate("fim", "ab", suffix="cd", options=GREEDY)
        spelt = own.generate("fim", f"{marks[0]}ab{marks[1]}cd{marks[2]}", raw=True, options=GREEDY)
        assert (between.response, between.prompt_eval_count) == (spelt.response, spelt.prompt_eval_count)
        # No text of a user becomes a mark.
        with_mark = own.generate("fim", "ab" + marks[1], suffix="cd", options=GREEDY)
        assert with_mark.prompt_eval_count > between.prompt_eval_count + 1
        check_completions(other, marks, between.response)


def check_completions(server, marks, expected):
    """C19: OpenAI's completions take a suffix as well, for each prompt of a list."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        ask = functools.partial(
            client.completions.create, model="fim", temperature=0.0, max_tokens=GREEDY["num_predict"]
        )
        first, second = ask(prompt=["ab", "xy"], suffix="cd").choices
        assert first.text == expected
        assert second.text == ask(prompt="xy", suffix="cd").choices[0].text
        assert ask(prompt="ab", suffix="").choices[0].text == ask(prompt="ab").choices[0].text
        for options, problem in (({"prompt": [1, 2]}, "expected prompts that are text"), ({"echo": True}, "with echo")):
            with pytest.raises(openai.BadRequestError, match=problem):
                ask(**{"prompt": "ab", "suffix": "cd"} | options)
