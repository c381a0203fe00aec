"""Images in prompts: what Python programs give, and the answers of the small golden models to it."""

import asyncio
import base64
import io
import pickle

import numpy as np
import pytest
from conftest import collect
from pictures import bad_pictures, drawn, encoded, good_pictures, png, rotated
from PIL import Image as Pillow
from rocmforge import LLM, AsyncLLM, Image, InvalidRequestError, SamplingParams, images

PARAMS = SamplingParams(max_tokens=6, temperature=0.0)
PROMPT = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>hi<|im_end|>\n<|im_start|>assistant\n"
GOOD, BAD = good_pictures(), bad_pictures()


def pixels(image):
    return np.frombuffer(image.rgb(), np.uint8).reshape(image.height, image.width, 3)


def data_url(content, kind="image/png"):
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def asked(*parts, text="hi"):
    """A conversation of one message with images."""
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


@pytest.fixture(scope="module")
def llm(vision_model):
    with LLM(vision_model("qwen25vl"), num_threads=1) as llm:
        yield llm


def answer(llm, messages, **options):
    (output,) = llm.chat(messages, PARAMS, progress=False, **options)
    return output


@pytest.mark.parametrize("name", GOOD)
def test_files_are_read(name):
    content, size, is_exact = GOOD[name]
    image = Image(content)
    assert (image.width, image.height) == size
    if is_exact:
        assert (pixels(image) == drawn()).all()


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused(name):
    content, said = BAD[name]
    with pytest.raises(InvalidRequestError, match=rf"^image: got .*{said}"):
        Image(content)


def test_limits_of_a_file():
    content = png(100, 100)
    with pytest.raises(InvalidRequestError, match=f"got a file of {len(content)} bytes, expected at most 99"):
        Image(content, max_bytes=99)
    with pytest.raises(InvalidRequestError, match="100 x 100 pixels, expected 1 to 9999"):
        Image(content, max_pixels=9999)
    assert Image(content, max_bytes=len(content), max_pixels=10_000).width == 100


def test_what_is_seen_of_odd_files():
    """Transparency lies on white, an animation is its first frame, and a turned picture stands upright."""
    assert (pixels(Image(GOOD["transparent"][0])) == 255).all()
    assert (pixels(Image(GOOD["palette"][0])) == [200, 10, 10]).all()
    assert pixels(Image(GOOD["animated"][0])).mean() > 50
    for orientation in range(1, 9):
        upright = pixels(Image(rotated(orientation)))
        as_pillow = images.as_image(Pillow.open(io.BytesIO(rotated(orientation))))
        dark = upright.reshape(-1, 3).sum(1).argmin()
        assert abs(pixels(as_pillow).astype(int) - upright).max() <= 8, orientation
        assert pixels(as_pillow).reshape(-1, 3).sum(1)[dark] < 60


def test_what_an_image_may_be(tmp_path):
    """A picture of PIL in any mode, an array, bytes, a path and a data: URL all give the same pixels."""
    expected, pillow = drawn(), Pillow.fromarray(drawn())
    file = tmp_path / "a.png"
    file.write_bytes(png())
    lines = data_url(png())[:200] + "\r\n" + data_url(png())[200:]
    given = [png(), bytearray(png()), memoryview(png()), file, str(file), data_url(png()), lines, pillow, expected]
    given += [pillow.convert("RGBA"), np.dstack([expected, np.full((48, 64), 255, np.uint8)]), Image(png())]
    for each in given:
        assert (pixels(images.as_image(each)) == expected).all(), type(each)
    grey = np.arange(48 * 64, dtype=np.uint8).reshape(48, 64)
    wide = Pillow.fromarray(grey.astype(np.uint16) * 257)
    for each in (grey, grey[:, :, None], Pillow.fromarray(grey), wide, Pillow.open(io.BytesIO(encoded(wide, "PNG")))):
        assert (pixels(images.as_image(each)) == grey[:, :, None]).all()
    half = np.zeros((1, 1, 4), np.uint8)
    half[0, 0, 3] = 128
    assert pixels(images.as_image(half)).tolist() == [[[127] * 3]]
    assert pixels(images.as_image(Pillow.fromarray(half))).tolist() == [[[127] * 3]]


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (None, TypeError, "expected a picture of PIL"),
        (3, TypeError, "expected a picture of PIL"),
        (np.zeros((4, 4), np.float32), InvalidRequestError, "an array of float32"),
        (np.zeros((4, 4, 2), np.uint8), InvalidRequestError, r"the shape \(4, 4, 2\)"),
        (np.zeros((0, 4, 3), np.uint8), InvalidRequestError, "at least one pixel"),
        (Pillow.new("F", (4, 4)), InvalidRequestError, "mode F"),
        ("https://example.com/a.png", InvalidRequestError, "download the picture"),
        ("data:image/png,abc", InvalidRequestError, "expected data:image/...;base64,"),
        ("data:text/plain;base64,YQ==", InvalidRequestError, "expected data:image/...;base64,"),
        ("data:image/png;base64,a*", InvalidRequestError, "not base64"),
        ("/no/such/file.png", FileNotFoundError, "no/such/file"),
    ],
)
def test_what_is_no_image(given, error, said):
    with pytest.raises(error, match=said):
        images.as_image(given)


def test_images_are_values():
    """They are equal by their pixels, and go to other processes."""
    image = Image(png())
    assert pickle.loads(pickle.dumps(image)).rgb() == image.rgb()
    assert (image.width, image.height) == (64, 48)
    assert "64" in repr(image)
    assert "48" in repr(image)
    with pytest.raises(AttributeError):
        image.width = 3
    assert Image.from_rgb(64, 48, image.rgb()).rgb() == image.rgb()
    with pytest.raises(InvalidRequestError, match="three bytes per pixel"):
        Image.from_rgb(64, 48, b"123")


def test_chats_see_images(llm, vision_model, assert_nothing_left):
    """Every form of a part means the same, and the answer is that of the prompt with the placeholder."""
    assert llm.mmproj == vision_model("qwen25vl").with_name("mmproj-qwen25vl.gguf")
    forms = [
        {"type": "image", "image": png()},
        {"type": "image", "image": Pillow.fromarray(drawn())},
        {"type": "image_pil", "image_pil": Pillow.fromarray(drawn())},
        {"type": "image_url", "image_url": {"url": data_url(png())}},
        {"type": "image_url", "image_url": data_url(png())},
        {"type": "input_image", "image_url": data_url(png())},
    ]
    outputs = [answer(llm, asked(form)) for form in forms]
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
    expected = llm.prompt_token_ids({"prompt": PROMPT, "images": [png()]})
    assert all(output.prompt_token_ids == expected for output in outputs)
    without = llm.tokenize(PROMPT, parse_special=True)
    assert len(expected) == len(without) - 1 + llm.image_tokens(png())
    assert_nothing_left(llm)


def test_the_image_changes_the_answer(llm):
    """The pixels are read, and an equal prompt with another image is another one for the prefix cache."""
    params = SamplingParams(max_tokens=1, temperature=0.0, logprobs=5)
    prompts = [{"prompt": PROMPT, "images": [png(seed=seed)]} for seed in (0, 1, 0)]
    first, other, again = (output.outputs[0].logprobs[0] for output in llm.generate(prompts, params, progress=False))
    assert first != other
    assert {token: one.logprob for token, one in first.items()} == {token: one.logprob for token, one in again.items()}


@pytest.mark.parametrize(
    ("name", "placeholder", "rows", "texts"),
    [
        ("gemma3", [], [479], []),
        ("gemma4e", [279], [279], []),
        ("glm4v", [479], [479], []),
        ("internvl", [479], [479], []),
        ("lfm2vl", [479], [479], range(473, 479)),
        ("mistral3", [477], [477, 478], []),
        ("qwen25vl", [478], [478], []),
        ("smolvlm", [479], [479], [198, *range(470, 479)]),
    ],
)
def test_golden_answers(name, placeholder, rows, texts, vision_model, golden_npz, golden_png):
    """The tokens that transformers generates with the model's own processor."""
    golden, picture = golden_npz(f"vision/{name}"), golden_png(f"vision/{name}_1")
    ids = golden["p1_tokens"].tolist()
    places = [place for place, token in enumerate(ids) if token in rows or token in texts]
    # One placeholder stands for them. Gemma's is before them.
    prompt = {"prompt_token_ids": [*ids[: places[0]], *placeholder, *ids[places[-1] + 1 :]], "images": [picture]}
    params = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True)
    with LLM(vision_model(name), num_threads=1, kv_cache_dtype="f32") as llm:
        assert llm.image_tokens(picture) == sum(token in rows for token in ids)
        assert llm.prompt_token_ids(prompt) == ids
        (output,) = llm.generate(prompt, params, progress=False)
    assert output.outputs[0].token_ids == golden["p1_greedy"].tolist()


@pytest.mark.parametrize(
    "name",
    [
        "gemma3",
        "gemma4",
        "gemma4e",
        "glm4v",
        "internvl",
        "lfm2vl",
        "mistral3",
        "pixtral",
        "qwen25vl",
        "qwen3vl",
        "smolvlm",
    ],
)
def test_families_see_images(name, vision_model):
    with LLM(vision_model(name), num_threads=1) as llm:
        output = answer(llm, asked({"type": "image", "image": png()}))
        text = answer(llm, asked())
    assert len(output.prompt_token_ids) >= len(text.prompt_token_ids) + 4


def test_prompts_with_images(llm):
    """vLLM's name for the images, token ids, several images, and prompts with and without any in one call."""
    ids = llm.tokenize(PROMPT, parse_special=True)
    two = PROMPT.replace("hi", "<|vision_start|><|image_pad|><|vision_end|>hi")
    prompts = [
        {"prompt": PROMPT, "images": [png()]},
        {"prompt": PROMPT, "multi_modal_data": {"image": png()}},
        {"prompt_token_ids": ids, "multi_modal_data": {"image": [Pillow.fromarray(drawn())]}},
        "hi",
        {"prompt": two, "images": [png(), png(96, 64, seed=2)]},
    ]
    outputs = llm.generate(prompts, PARAMS, progress=False)
    assert len({tuple(output.outputs[0].token_ids) for output in outputs[:3]}) == 1
    assert len(outputs[4].prompt_token_ids) > len(outputs[0].prompt_token_ids)
    streamed = list(llm.stream({"prompt": PROMPT, "images": [png()]}, PARAMS))
    assert streamed[-1].outputs[0].token_ids == outputs[0].outputs[0].token_ids


@pytest.mark.parametrize(
    ("prompt", "error", "said"),
    [
        ({"prompt": "hi", "images": [png()]}, InvalidRequestError, "placeholder"),
        ({"prompt": PROMPT * 2, "images": [png()]}, InvalidRequestError, "placeholder"),
        ({"prompt": PROMPT, "images": [b""]}, InvalidRequestError, "image: "),
        ({"prompt": PROMPT, "multi_modal_data": {"video": png()}}, InvalidRequestError, "multi_modal_data"),
        ({"prompt": PROMPT, "images": [png()], "multi_modal_data": {"image": png()}}, InvalidRequestError, "multi_mod"),
        ({"images": [png()]}, TypeError, "expected text, token ids"),
    ],
)
def test_prompts_that_do_not_fit(llm, prompt, error, said, assert_nothing_left):
    with pytest.raises(error, match=said):
        llm.generate(prompt, PARAMS, progress=False)
    assert_nothing_left(llm)


def test_users_spell_no_placeholder(llm):
    """Text that spells a placeholder stays text, beside an image and without one."""
    parts = {"type": "image", "image": png()}
    plain, spelt = (answer(llm, asked(parts, text=text)) for text in ("hi", "<|image_pad|> hi"))
    image = llm.image_tokens(png())
    marker = llm.tokenize("<|image_pad|>", parse_special=True, add_special=False)
    assert [output.prompt_token_ids.count(marker[0]) for output in (plain, spelt)] == [image, image]
    assert answer(llm, asked(text="<|image_pad|>")).prompt_token_ids.count(marker[0]) == 0


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"type": "image_url"}, r"messages\[0\].content\[0\]: got a part of type image_url without a URL"),
        (
            {"type": "image_url", "image_url": "/etc/hostname"},
            r"messages\[0\].content\[0\]: got the URL '/etc/hostname'",
        ),
        ({"type": "image_url", "image_url": "https://a.b/c.png"}, "download the picture"),
        ({"type": "image", "image": b"x"}, r"messages\[0\].content\[0\]: got 1 bytes"),
        ({"type": "image"}, r"messages\[0\].content\[0\]: got <class 'NoneType'>"),
    ],
)
def test_parts_that_are_no_images(llm, part, said):
    with pytest.raises((InvalidRequestError, TypeError), match=said):
        llm.chat(asked(part), PARAMS, progress=False)


def test_a_model_of_text_says_what_is_missing(vision_model):
    """The error names the file."""
    with LLM(vision_model("qwen25vl"), mmproj="none", num_threads=1) as llm:
        assert llm.mmproj is None
        for ask in (
            lambda: answer(llm, asked({"type": "image", "image": png()})),
            lambda: llm.generate({"prompt": PROMPT, "images": [png()]}, PARAMS, progress=False),
            lambda: llm.image_tokens(png()),
        ):
            with pytest.raises(InvalidRequestError, match=r"only text.*mmproj-\*\.gguf.*--mmproj"):
                ask()
        with pytest.raises(InvalidRequestError, match="only generation takes images"):
            llm.embed({"prompt": "hi", "images": [png()]}, progress=False)


async def test_async_chats_see_images(llm, vision_model, assert_nothing_left):
    expected = answer(llm, asked({"type": "image", "image": png()}))
    messages = asked({"type": "image_url", "image_url": data_url(png())})
    async with await AsyncLLM.load(vision_model("qwen25vl"), num_threads=1) as engine:
        chats = [engine.chat(messages, PARAMS) for _ in range(4)]
        generated = collect(engine, {"prompt": PROMPT, "images": [png()]}, PARAMS)

        async def last(outputs):
            return [output async for output in outputs][-1]

        *answers, outputs = await asyncio.gather(*map(last, chats), generated)
        for output in (*answers, outputs[-1]):
            assert output.outputs[0].token_ids == expected.outputs[0].token_ids
            assert output.prompt_token_ids == expected.prompt_token_ids
        tasks = [asyncio.create_task(collect(engine, {"prompt": PROMPT, "images": [png()]}, PARAMS)) for _ in range(32)]
        for number, task in enumerate(tasks):
            await asyncio.sleep(0.0005 * (number % 3))
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(assert_nothing_left_in, engine, assert_nothing_left)


def assert_nothing_left_in(engine, assert_nothing_left):
    assert_nothing_left(engine)


def test_isolated_engines_see_images(llm, vision_model):
    expected = answer(llm, asked({"type": "image", "image": png()}))
    with LLM(vision_model("qwen25vl"), isolate=True, num_threads=1) as isolated:
        assert isolated.mmproj == llm.mmproj
        assert isolated.image_tokens(png()) == llm.image_tokens(png())
        found = answer(isolated, asked({"type": "image", "image": png()}))
    assert found.outputs[0].token_ids == expected.outputs[0].token_ids
    assert found.prompt_token_ids == expected.prompt_token_ids
