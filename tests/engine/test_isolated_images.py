"""Images of an engine in a child process: pixels go there once, and again where the child has lost them."""

import os
import signal
import time

import pytest
from pictures import drawn
from processes import children
from rocmforge import LLM, EngineDeadError, Image, SamplingParams
from rocmforge.isolation import images
from rocmforge.isolation.images import ImageGoneError, ReceivedImages, SentImages

SIDE = 256
SIZE = SIDE * SIDE * 3
PARAMS = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
PATIENCE = 60.0


def picture(seed=0, side=SIDE):
    return Image.from_rgb(side, side, drawn(side, side, seed).tobytes())


@pytest.fixture(scope="module")
def before():
    """The processes that this one has already."""
    return children(os.getpid())


@pytest.fixture(scope="module")
def models(vision_model, before):
    """One model, loaded in this process and in another one."""
    path = vision_model("qwen25vl")
    options = {"num_threads": 1, "device": "cpu"}
    with LLM(path, **options) as local, LLM(path, isolate=True, **options) as isolated:
        yield local, isolated


@pytest.fixture
def sent(monkeypatch):
    """The bytes of the calls to children."""
    sizes = []
    pickled = SentImages.pickled

    def counted(self, arguments, *, with_pixels):
        message = pickled(self, arguments, with_pixels=with_pixels)
        sizes.append(len(message[0]))
        return message

    monkeypatch.setattr(SentImages, "pickled", counted)
    return sizes


def told(llm, *pictures):
    parts = [{"type": "image", "image": each} for each in pictures]
    (output,) = llm.chat(
        [{"role": "user", "content": [*parts, {"type": "text", "text": "hi"}]}], PARAMS, progress=False
    )
    return output.outputs[0].token_ids, output.prompt_token_ids


def with_pixels(sizes):
    return sum(size > SIZE for size in sizes)


def test_pixels_are_sent_once(models, sent):
    local, isolated = models
    first, second = picture(1), picture(2)
    for pictures in ((first,), (first,), (first, second), (second, first, second)):
        assert told(isolated, *pictures) == told(local, *pictures)
    assert isolated.image_tokens(first) == local.image_tokens(first)
    assert with_pixels(sent) == 2


def test_other_images_of_equal_pixels_are_sent(models, sent):
    """Clients have images of their own. The time of a call must not tell one what another has sent."""
    local, isolated = models
    assert told(isolated, picture(3)) == told(isolated, picture(3)) == told(local, picture(3))
    assert with_pixels(sent) == 2


def test_an_image_that_the_child_dropped_is_sent_again(models, sent):
    local, isolated = models
    first, side = picture(4), 3_000
    wanted = told(local, first)
    assert told(isolated, first) == wanted
    for seed in range(images.MAX_BYTES // (3 * side * side) + 1):
        isolated.image_tokens(picture(seed, side))
    sent.clear()
    assert told(isolated, first) == wanted
    assert with_pixels(sent) == 1
    assert told(isolated, first) == wanted
    assert with_pixels(sent) == 1


def test_the_next_child_gets_the_image(models, before, sent):
    local, isolated = models
    first = picture(5)
    wanted = told(local, first)
    assert told(isolated, first) == wanted
    [child] = children(os.getpid()) - before
    os.kill(child, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            assert told(isolated, first) == wanted
            break
        except EngineDeadError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert isolated.restarts["kill"] == 1
    assert with_pixels(sent) == 2


def test_a_child_keeps_the_last_images_up_to_its_bytes():
    received = ReceivedImages(2 * SIZE)
    pixels = SIDE, SIDE, picture().rgb()
    first = received.receive(0, pixels)
    received.receive(1, pixels)
    assert received.receive(0, None) is first
    received.receive(2, pixels)
    with pytest.raises(ImageGoneError):
        received.receive(1, None)
    assert received.receive(0, None) is first
    # An image that is sent again takes no more room, and one that is too large takes none.
    received.receive(0, pixels)
    received.receive(3, (2 * SIDE, 2 * SIDE, picture(0, 2 * SIDE).rgb()))
    assert received.receive(2, None).rgb() == pixels[2]
    with pytest.raises(ImageGoneError):
        received.receive(3, None)


def test_an_image_that_is_gone_here_has_no_number():
    sent = SentImages()
    image = picture()
    assert sent.number(image) == (0, True)
    assert sent.number(image) == (0, False)
    del image
    assert sent.number(picture()) == (1, True)
