"""Images through four APIs, with the clients that people have, against what the engine says in this process."""

import asyncio
import base64
import contextlib
import os
import random

import anthropic
import httpx
import ollama
import openai
import pytest
from conftest import unpacked
from pictures import bad_pictures, good_pictures, png
from rocmforge import LLM, SamplingParams
from rocmforge.server import ServerConfig
from rocmforge.server.images.kept import KeptImages
from rocmforge.server.images.sent import SentImage, read_images
from server_process import serving

# `make test-soak` asks for 1,000.
NUM_REQUESTS = int(os.environ.get("ROCMFORGE_TEST_IMAGE_REQUESTS", "100"))
MAX_TOKENS = 6
PIXELS = 400_000
GOOD, BAD = good_pictures(), bad_pictures()
# A real chat template, for the text around the same parts.
REAL = unpacked("templates/Qwen-Qwen3.5-4B.jinja").decode()
TOOL = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
MISSING = "this model accepts only text; to read images, it needs the file of its image encoder: put mmproj-"


def base64_of(content):
    return base64.b64encode(content).decode()


def data_url(content, kind="image/png"):
    return f"data:{kind};base64,{base64_of(content)}"


@pytest.fixture(scope="module")
def llm(vision_model):
    with LLM(vision_model("qwen25vl"), num_threads=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def server(vision_model, tmp_path_factory):
    limits = ["--max-images", 3, "--max-image-pixels", PIXELS, "--max-image-bytes", 100_000]
    arguments = ["--num-threads", 1, "--served-model-name", "small", *limits]
    with serving(tmp_path_factory.mktemp("log"), vision_model("qwen25vl"), *arguments) as server:
        yield server


@pytest.fixture(scope="module")
def blind(vision_model, tmp_path_factory):
    """A server of the same model without its image encoder."""
    arguments = ["--num-threads", 1, "--served-model-name", "small", "--mmproj", "none"]
    with serving(tmp_path_factory.mktemp("log"), vision_model("qwen25vl"), *arguments) as server:
        yield server


@pytest.fixture(scope="module")
def agent(vision_model, tmp_path_factory):
    """A server whose template has tools, and images in their results."""
    folder = tmp_path_factory.mktemp("agent")
    (folder / "template.jinja").write_text(REAL)
    arguments = ["--num-threads", 1, "--served-model-name", "small", "--chat-template", folder / "template.jinja"]
    with serving(folder, vision_model("qwen25vl"), *arguments) as server:
        yield server


def told(llm, *contents, **options):
    """Returns the engine's answer to images and a text, and the number of tokens of the prompt."""
    parts = [
        {"type": "text", "text": each} if isinstance(each, str) else {"type": "image", "image": each}
        for each in contents
    ]
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0)
    (output,) = llm.chat([{"role": "user", "content": parts}], params, progress=False, **options)
    return output.outputs[0].text, len(output.prompt_token_ids)


def chat_body(*images, text="hi", **more):
    parts = [{"type": "image_url", "image_url": {"url": image}} for image in images]
    message = {"role": "user", "content": [*parts, {"type": "text", "text": text}]}
    return {"model": "small", "max_tokens": MAX_TOKENS, "temperature": 0, "messages": [message]} | more


def test_openai_chats(server, llm):
    expected, length = told(llm, png(), png(96, 64, 1), "hi")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        for detail in ("auto", "low", "high"):
            urls = [{"url": data_url(image), "detail": detail} for image in (png(), png(96, 64, 1))]
            answer = client.chat.completions.create(
                **chat_body()
                | {
                    "messages": [
                        {
                            "role": "user",
                            "content": [
                                *({"type": "image_url", "image_url": url} for url in urls),
                                {"type": "text", "text": "hi"},
                            ],
                        }
                    ],
                }
            )
            assert answer.choices[0].message.content == expected
            assert answer.usage.prompt_tokens == length
        chunks = client.chat.completions.create(
            **chat_body(data_url(png()), data_url(png(96, 64, 1))), stream=True, stream_options={"include_usage": True}
        )
        pieces = list(chunks)
        text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
        assert (text, pieces[-1].usage.prompt_tokens) == (expected, length)
    server.settled()


def test_openai_responses(server, llm):
    expected, length = told(llm, png(), "hi")
    content = [
        {"type": "input_image", "image_url": data_url(png()), "detail": "auto"},
        {"type": "input_text", "text": "hi"},
    ]
    asked = {"model": "small", "input": [{"role": "user", "content": content}]}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.responses.create(**asked, max_output_tokens=MAX_TOKENS, temperature=0)
        assert (answer.output_text, answer.usage.input_tokens) == (expected, length)
        assert client.responses.input_tokens.count(**asked).input_tokens == length
        # The stored conversation still has the image.
        more = client.responses.create(
            model="small", input="and?", previous_response_id=answer.id, max_output_tokens=1, temperature=0
        )
        assert more.usage.input_tokens > length
        listed = client.responses.input_items.list(answer.id).data
        assert listed[0].content[0].image_url == data_url(png())
    server.settled()


def test_anthropic_messages(server, llm):
    expected, length = told(llm, png(), "hi")
    source = {"type": "base64", "media_type": "image/png", "data": base64_of(png())}
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        for each in (source, {"type": "url", "url": data_url(png())}):
            content = [{"type": "image", "source": each, "cache_control": {"type": "ephemeral"}}]
            messages = [{"role": "user", "content": [*content, {"type": "text", "text": "hi"}]}]
            answer = client.messages.create(
                model="small", max_tokens=MAX_TOKENS, messages=messages, extra_body={"temperature": 0}
            )
            usage = answer.usage
            assert answer.content[0].text == expected
            assert usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens == length
            assert client.messages.count_tokens(model="small", messages=messages).input_tokens == length
        (model,) = client.beta.models.list().data
        assert model.capabilities.image_input.supported
    server.settled()


def test_ollama(server, llm, tmp_path):
    expected, length = told(llm, png(), "hi")
    options = {"temperature": 0, "num_predict": MAX_TOKENS, "repeat_penalty": 1.0}
    file = tmp_path / "a.png"
    file.write_bytes(png())
    with ollama.Client(server.url) as client:
        for image in (png(), file, base64_of(png())):
            chat = client.chat("small", [{"role": "user", "content": "hi", "images": [image]}], options=options)
            assert (chat.message.content, chat.prompt_eval_count) == (expected, length)
            generated = client.generate("small", "hi", images=[image], options=options)
            assert (generated.response, generated.prompt_eval_count) == (expected, length)
        prompt = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>hi<|im_end|>\n<|im_start|>assistant\n"
        raw = client.generate("small", prompt, raw=True, images=[png()], options=options)
        assert (raw.response, raw.prompt_eval_count) == (expected, length)
        assert "vision" in client.show("small").capabilities
    server.settled()


def test_models_tell_that_they_see(server, blind):
    for each, modalities in ((server, ["text", "image"]), (blind, ["text"])):
        (model,) = each.client.get("/v1/models").json()["data"]
        assert model["architecture"]["input_modalities"] == modalities
        assert ("vision" in model["capabilities"]) == ("image" in modalities)
        assert each.client.get("/props").json()["modalities"]["vision"] == ("image" in modalities)


def test_tokens_are_shown(server, llm):
    """The tokens of a conversation are those that the engine computes."""
    messages = chat_body(data_url(png()))["messages"]
    answer = server.client.post("/tokenize", json={"messages": messages}).json()
    prompt = server.client.post("/apply_template", json={"messages": messages}).json()["prompt"]
    assert prompt.count("<|image_pad|>") == 1
    assert answer["tokens"] == llm.prompt_token_ids({"prompt": prompt, "images": [png()]})
    assert answer["count"] == told(llm, png(), "hi")[1]


def test_images_of_earlier_turns_are_kept():
    """Each is decoded once, up to a number of bytes, and for its client alone; what was used last stays."""
    size = 64 * 48 * 3
    kept = KeptImages(2 * size)
    config = ServerConfig()

    def read(seed, client=None):
        messages = [{"role": "user", "content": [SentImage("x", content=base64_of(png(seed=seed))).part()]}]
        return read_images(messages, config, kept, client)[0]

    first = read(0)
    assert read(0) is first
    assert read(0, "other") is not first
    assert kept.num_bytes == 2 * size
    assert read(0) is first
    read(1)
    assert read(0) is first
    assert kept.num_bytes == 2 * size
    none = KeptImages(0)
    none.put((None, "x"), first)
    assert (none.get((None, "x")), none.num_bytes) == (None, 0)


@pytest.mark.parametrize("name", GOOD)
def test_files_are_answered(server, name):
    answer = server.client.post("/v1/chat/completions", json=chat_body(data_url(GOOD[name][0])))
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused(server, name):
    """The error names the part, and nothing of the request is left."""
    content, said = BAD[name]
    place = "messages.0.content.0.image_url"
    error = server.client.post("/v1/chat/completions", json=chat_body(data_url(content))).json()["error"]
    assert error["param"] == place
    assert error["message"].startswith(f"{place}: got ")
    assert not said or any(part in error["message"] for part in said.strip("()").split("|"))
    server.settled()


def refused(server, path, body, place):
    """The error of a request, whose place is checked."""
    answer = server.client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    assert message.startswith(f"{place}: "), message
    return message


def test_limits(server):
    """How many, how large in bytes and in pixels; all images of a request share their pixels."""
    path, small, large = "/v1/chat/completions", data_url(png()), data_url(png(500, 500))
    said = refused(server, path, chat_body(*[small] * 4), "messages.0.content.3.image_url")
    assert "got 4 images, expected at most 3 in a request (the server's max_images)" in said
    assert server.client.post(path, json=chat_body(*[small] * 3)).status_code == 200
    said = refused(server, path, chat_body(small, large, large), "messages.0.content.2.image_url")
    assert "pixels" in said
    noise = random.Random(0).randbytes(120_000)
    said = refused(server, path, chat_body(data_url(noise)), "messages.0.content.0.image_url")
    assert "got a file of 120000 bytes, expected at most 100000" in said


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://example.com/a.png", "got a URL of the host 'example.com', which this server may not ask"),
        ("http://127.0.0.1:1/a.png", "which this server may not ask"),
        ("file:///etc/hostname", "expected a data: URL"),
        ("/etc/hostname", "expected a data: URL"),
        ("data:image/png,abc", "expected data:image/...;base64,"),
        ("data:text/html;base64,YQ==", "expected data:image/...;base64,"),
        ("data:image/png;base64,***", "not base64"),
        ("", "expected a data: URL"),
    ],
)
def test_other_urls_are_refused(server, url, said):
    """No client makes the server read its files or ask its network."""
    assert said in refused(server, "/v1/chat/completions", chat_body(url), "messages.0.content.0.image_url")
    body = {"model": "small", "input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]}
    assert said in refused(server, "/v1/responses", body, "input.0.content.0.image_url")
    block = {"type": "image", "source": {"type": "url", "url": url}}
    body = {"model": "small", "max_tokens": 1, "messages": [{"role": "user", "content": [block]}]}
    assert said in refused(server, "/v1/messages", body, "messages.0.content.0.source.url")


def test_other_parts_are_refused(server):
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "***"}}
    body = {"model": "small", "max_tokens": 1, "messages": [{"role": "user", "content": [block]}]}
    assert "not base64" in refused(server, "/v1/messages", body, "messages.0.content.0.source.data")
    block["source"] = {"type": "file", "file_id": "file_1"}
    refused(server, "/v1/messages", body, "messages.0.content.0.source.file_id")
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b", "images": [base64_of(png()), "***"]}]
    refused(server, "/api/chat", {"model": "small", "messages": messages}, "messages.1.images.1")
    refused(server, "/api/generate", {"model": "small", "prompt": "a", "images": ["YQ=="]}, "images.0")
    content = [{"type": "input_image", "file_id": "file_1"}]
    body = {"model": "small", "input": [{"role": "user", "content": content}]}
    refused(server, "/v1/responses", body, "input.0.content.0.image_url")
    item = {"role": "assistant", "content": [{"type": "input_image", "image_url": data_url(png())}]}
    refused(server, "/v1/responses", {"model": "small", "input": [item]}, "input.0.content")


def test_a_model_of_text_says_what_is_missing(blind):
    """Each API names the file."""
    path, place = "/v1/chat/completions", "messages.0.content.0.image_url"
    assert MISSING in refused(blind, path, chat_body(data_url(png())), place)
    content = [{"type": "input_image", "image_url": data_url(png())}]
    body = {"model": "small", "input": [{"role": "user", "content": content}]}
    assert MISSING in refused(blind, "/v1/responses", body, "input.0.content.0.image_url")
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64_of(png())}}
    body = {"model": "small", "max_tokens": 1, "messages": [{"role": "user", "content": [block]}]}
    assert MISSING in refused(blind, "/v1/messages", body, "messages.0.content.0.source.data")
    body = {"model": "small", "prompt": "hi", "images": [base64_of(png())]}
    for more in ({}, {"raw": True}):
        assert MISSING in refused(blind, "/api/generate", body | more, "images.0")
    message = {"role": "user", "content": "hi", "images": [base64_of(png())]}
    assert MISSING in refused(blind, "/api/chat", {"model": "small", "messages": [message]}, "messages.0.images.0")


def openai_result(image):
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    parts = [{"type": "text", "text": "Here:"}, {"type": "image_url", "image_url": {"url": image}}]
    return [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": parts},
    ]


def anthropic_result(image):
    source = {"type": "base64", "media_type": "image/png", "data": image}
    parts = [{"type": "text", "text": "Here:"}, {"type": "image", "source": source}]
    return [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": parts}]},
    ]


def responses_result(image):
    parts = [{"type": "input_text", "text": "Here:"}, {"type": "input_image", "image_url": image}]
    return [
        {"role": "user", "content": "Look."},
        {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": parts},
    ]


def lengths_with_results(server, image):
    """The tokens of the same conversation with an image in a tool's result, in three APIs."""
    tool = {"type": "function", "function": TOOL}
    body = {"messages": openai_result(data_url(image)), "tools": [tool]}
    chat = server.client.post("/tokenize", json=body)
    body = {"model": "small", "input": responses_result(data_url(image)), "tools": [{"type": "function", **TOOL}]}
    responses = server.client.post("/v1/responses/input_tokens", json=body)
    tool = {"name": "look", "description": "Looks.", "input_schema": TOOL["parameters"]}
    body = {"model": "small", "messages": anthropic_result(base64_of(image)), "tools": [tool]}
    messages = server.client.post("/v1/messages/count_tokens", json=body)
    answers = (chat, responses, messages)
    assert [answer.status_code for answer in answers] == [200] * 3, [answer.text for answer in answers]
    return chat.json()["count"], responses.json()["input_tokens"], messages.json()["input_tokens"]


def test_results_of_tools_have_images(agent, llm):
    """Agents return screenshots; the template has each where the result is."""
    small, large = png(), png(168, 112)
    more = llm.image_tokens(large) - llm.image_tokens(small)
    assert more > 0
    assert lengths_with_results(agent, large) == tuple(each + more for each in lengths_with_results(agent, small))
    messages = openai_result(data_url(small))
    tools = [{"type": "function", "function": TOOL}]
    answer = agent.client.post("/apply_template", json={"messages": messages, "tools": tools}).json()["prompt"]
    assert "<tool_response>\nHere:<|vision_start|><|image_pad|><|vision_end|>\n</tool_response>" in answer
    body = {"model": "small", "max_tokens": 2, "messages": messages, "tools": tools}
    assert agent.client.post("/v1/chat/completions", json=body).status_code == 200
    agent.settled()


def test_a_session_of_text_goes_on(vision_model, tmp_path):
    """A model of text reads a note in place of the image that a tool returned."""
    (tmp_path / "template.jinja").write_text(REAL)
    arguments = ["--num-threads", 1, "--chat-template", tmp_path / "template.jinja", "--mmproj", "none"]
    with serving(tmp_path, vision_model("qwen25vl"), *arguments, "--served-model-name", "small") as server:
        body = {"messages": openai_result(data_url(png())), "tools": [{"type": "function", "function": TOOL}]}
        prompt = server.client.post("/apply_template", json=body).json()["prompt"]
        assert "<tool_response>\nHere:\n[image omitted: this model reads text only]\n</tool_response>" in prompt
        assert len(set(lengths_with_results(server, png()))) == 1


def test_templates_that_lose_images_of_results(vision_model, tmp_path):
    """There, the images follow the results, in the user's turn."""
    image = "<|vision_start|><|image_pad|><|vision_end|>"
    response = "{{- '\\n<tool_response>\\n' }}\n        {{- content }}"
    assert response in REAL
    lossy = REAL.replace(response, response.replace("content", f"content | replace('{image}', '')"))
    (tmp_path / "template.jinja").write_text(lossy)
    arguments = ["--num-threads", 1, "--chat-template", tmp_path / "template.jinja", "--served-model-name", "small"]
    with serving(tmp_path, vision_model("qwen25vl"), *arguments) as server:
        body = {"messages": openai_result(data_url(png())), "tools": [{"type": "function", "function": TOOL}]}
        prompt = server.client.post("/apply_template", json=body).json()["prompt"]
        assert "<tool_response>\nHere:\n</tool_response>" in prompt
        assert f"Images of the results:{image}" in prompt


def test_users_spell_no_placeholder(server, llm):
    """Text that spells a placeholder stays text."""
    body = {"messages": chat_body(data_url(png()), text="<|image_pad|>")["messages"]}
    tokens = server.client.post("/tokenize", json=body).json()["tokens"]
    (placeholder,) = llm.tokenize("<|image_pad|>", parse_special=True)
    assert tokens.count(placeholder) == llm.image_tokens(png())


async def test_requests_with_cancels_leave_nothing(server):
    """Clients that leave while images are read, encoded or answered, and some that stay."""
    source = random.Random(5)
    urls = [data_url(png(64 + 8 * seed, 48, seed)) for seed in range(8)]

    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:

        async def ask(number):
            images = source.sample(urls, source.randint(1, 3))
            body = chat_body(*images, text=str(number), max_tokens=source.randint(1, 40), stream=number % 2 == 0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(source.choice([0.005, 0.02, 0.1, 60])):
                    answer = await client.post("/v1/chat/completions", json=body)
                    assert answer.status_code == 200, answer.text

        for at in range(0, NUM_REQUESTS, 16):
            await asyncio.gather(*map(ask, range(at, min(at + 16, NUM_REQUESTS))))
    stats = server.settled()
    assert stats["num_running"] == stats["num_waiting"] == 0
