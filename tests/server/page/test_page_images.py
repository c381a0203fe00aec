"""Images and text files in the page's chat: attached, shown, sent, kept, and refused in words."""

import base64
import io
import json
import re

import pytest
from page_browser import answered, ask, opened, serving, set_sampling, settled
from pictures import png
from PIL import Image
from playwright.sync_api import expect
from rocmforge import LLM, SamplingParams

pytest_plugins = ("page_fixtures",)

# In the page: what a paste or a drop of files brings.
HAND_OVER = """([kind, selector, files, text]) => {
  const data = new DataTransfer();
  for (const { name, type, content } of files) {
    const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
    data.items.add(new File([bytes], name, { type }));
  }
  if (text) data.setData("text/plain", text);
  const how = { bubbles: true, cancelable: true };
  const made = (name) => name === "paste" ? new ClipboardEvent(name, { ...how, clipboardData: data })
    : new DragEvent(name, { ...how, dataTransfer: data });
  const target = document.querySelector(selector);
  if (kind === "drop") target.dispatchEvent(made("dragover"));
  return !target.dispatchEvent(made(kind));
}"""


@pytest.fixture(scope="module")
def server(vision_model):
    """A server of a model that sees."""
    with serving(vision_model("qwen25vl"), "--served-model-name", "seer") as client:
        yield client
        settled(client)


def file(name, content, kind="image/png"):
    return {"name": name, "mimeType": kind, "buffer": content}


def hand_over(page, kind, selector, *files, text=""):
    """Pastes or drops files; returns whether the page took them."""
    given = [
        {"name": each["name"], "type": each["mimeType"], "content": base64.b64encode(each["buffer"]).decode()}
        for each in files
    ]
    return page.evaluate(HAND_OVER, [kind, selector, given, text])


def attach(page, *files):
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Attach").click()
    chooser.value.set_files(list(files))


def attached(page):
    return page.get_by_role("list", name="Attachments").get_by_role("listitem")


def sent(page, text):
    """Sends the message; returns what the server got."""
    with page.expect_request("**/v1/chat/completions") as asked:
        ask(page, text)
    answered(page)
    return json.loads(asked.value.post_data)["messages"]


def picture(url):
    return Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))


def test_an_image_is_seen(page, vision_model):
    """The answer is that of the engine to the file, which is sent as it is."""
    set_sampling(page, temperature=0, max_tokens=6)
    attach(page, file("cat.png", png()), file("dog.png", png(seed=1)))
    expect(attached(page)).to_have_count(2)
    page.get_by_role("button", name="Remove dog.png").click()
    expect(attached(page)).to_have_count(1)
    (message,) = sent(page, "hi")
    url = "data:image/png;base64," + base64.b64encode(png()).decode()
    assert message["content"] == [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "hi"}]
    expect(attached(page)).to_have_count(0)
    with LLM(vision_model("qwen25vl"), num_threads=1) as llm:
        params = SamplingParams(max_tokens=6, temperature=0.0)
        parts = [{"type": "image", "image": png()}, {"type": "text", "text": "hi"}]
        (expected,) = llm.chat([{"role": "user", "content": parts}], params, progress=False)
    figures = page.get_by_role("article", name="Answer").locator(".figures")
    expect(figures).to_contain_text(f"of {len(expected.prompt_token_ids)} prompt tokens")
    expect(page.get_by_role("article", name="You").get_by_role("img", name="Image 1 of 1")).to_be_visible()


def test_images_are_kept(page):
    """They are there after a reload, in the next turn, in an edited message and in an export."""
    set_sampling(page, temperature=0, max_tokens=2)
    attach(page, file("cat.png", png()))
    sent(page, "")
    expect(page.locator("#title")).to_have_text("Image")
    page.reload()
    page.wait_for_selector("body[data-ready]")
    question = page.get_by_role("article", name="You")
    expect(question.get_by_role("img")).to_have_count(1)
    messages = sent(page, "and?")
    assert [part["type"] for part in messages[0]["content"]] == ["image_url"]
    question.first.get_by_role("button", name="Edit message").click()
    question.first.get_by_role("textbox").fill("What?")
    with page.expect_request("**/v1/chat/completions") as asked:
        question.first.get_by_role("button", name="Send").click()
    answered(page)
    (message,) = json.loads(asked.value.post_data)["messages"]
    assert [part["type"] for part in message["content"]] == ["image_url", "text"]
    with page.expect_download() as download:
        page.get_by_role("button", name="Export all").click()
    (exported,) = json.loads(download.value.path().read_text())
    assert exported["messages"][0]["images"][0].startswith("data:image/png;base64,")
    exported |= {"id": "other", "title": "Copied"}
    for images, said in (
        (exported["messages"][0]["images"], "1 of 1 imported"),
        (["https://a.b/c.png"], "a data: URL"),
    ):
        exported["messages"][0]["images"] = images
        with page.expect_file_chooser() as chooser:
            page.get_by_role("button", name="Import").click()
        chooser.value.set_files(file("a.json", json.dumps([exported]).encode(), "application/json"))
        expect(page.locator("#import-state")).to_contain_text(said)


def test_large_images_are_made_smaller(page):
    """The longer side has at most 2,048 pixels; a format that the server does not read becomes one that it does."""
    set_sampling(page, max_tokens=1)
    bitmap = io.BytesIO()
    Image.new("RGB", (40, 30), (200, 10, 10)).save(bitmap, "BMP")
    attach(page, file("wide.png", png(3000, 90)), file("old.bmp", bitmap.getvalue(), "image/bmp"))
    expect(attached(page)).to_have_count(2)
    (message,) = sent(page, "hi")
    wide, old, _ = message["content"]
    assert picture(wide["image_url"]["url"]).size == (2048, 61)
    assert picture(old["image_url"]["url"]).format == "PNG"
    assert picture(old["image_url"]["url"]).getpixel((3, 3))[:3] == (200, 10, 10)


def test_files_are_pasted_and_dropped(page):
    set_sampling(page, max_tokens=1)
    assert hand_over(page, "paste", "#prompt", file("a.png", png()))
    assert hand_over(page, "drop", "#messages", file("b.png", png(seed=1)), file("c.txt", b"See.", "text/plain"))
    # A table that is pasted has a picture beside its text.
    assert not hand_over(page, "paste", "#prompt", file("d.png", png()), text="1\t2")
    assert not hand_over(page, "paste", "#prompt", text="words")
    expect(attached(page)).to_have_count(3)
    (message,) = sent(page, "hi")
    assert [part["type"] for part in message["content"]] == ["image_url", "image_url", "text"]
    assert message["content"][2]["text"] == "hi\n\nc.txt:\n```txt\nSee.\n```"


def test_text_files_are_part_of_the_message(page):
    """Each is a block with its name, whose fence no line of the file ends."""
    set_sampling(page, max_tokens=1)
    attach(page, file("a.py", b"x = 1\r\n", "text/x-python"), file("README", "# é\n````\n".encode(), ""))
    (message,) = sent(page, "Read.")
    assert message["content"] == "Read.\n\na.py:\n```py\nx = 1\n```\n\nREADME:\n`````\n# é\n````\n`````"


def test_what_cannot_be_attached_is_said(page):
    notice = page.get_by_role("alert")
    for given, said in (
        (file("a.png", b"none"), "a.png: this browser cannot read the image."),
        (file("a.zip", b"PK\0\1", "application/zip"), "a.zip is neither an image nor a text in UTF-8."),
        (file("a.bin", b"\xff\xfe", ""), "a.bin is neither an image nor a text in UTF-8."),
        (file("a.log", b"a" * (1 << 20) + b"a", "text/plain"), "a.log has 1025 KiB; at most 1,024 KiB"),
    ):
        attach(page, given)
        expect(notice).to_contain_text(said)
    expect(attached(page)).to_have_count(0)
    attach(page, *[file(f"{index}.png", png()) for index in range(17)])
    expect(notice).to_contain_text("16.png: a message has at most 16 images.")
    expect(attached(page)).to_have_count(16)
    attach(page, file("a.txt", b"a", "text/plain"))
    expect(notice).to_be_hidden()


def test_a_model_of_text_takes_text_files(chromium, vision_model):
    """Its button says so, and an image is refused before it is sent."""
    with (
        serving(vision_model("qwen25vl"), "--mmproj", "none", "--served-model-name", "reader") as client,
        opened(chromium, client.base_url) as page,
    ):
        expect(page.get_by_role("button", name=re.compile("^Attach"))).to_have_accessible_name("Attach text files")
        attach(page, file("a.png", png()), file("a.txt", b"a", "text/plain"))
        expect(page.get_by_role("alert")).to_contain_text("a.png: the chosen model accepts only text.")
        expect(attached(page)).to_have_count(1)
