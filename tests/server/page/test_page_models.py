"""Choosing a model: what is loaded, how far a load is, and what goes wrong with it."""

import os
import re
import shutil
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from page_browser import answered, ask, opened, serving, set_sampling
from playwright.sync_api import expect

pytest_plugins = ("page_fixtures",)

FOLDER = os.environ.get("ROCMFORGE_PAGE_SCREENSHOTS")
WIDTHS = {"desktop": (1280, 800), "phone": (390, 844)}
# Each width and each theme at every commit.
VIEWS = [
    ("desktop", "light"),
    ("phone", "dark"),
    pytest.param("desktop", "dark", marks=pytest.mark.deep),
    pytest.param("phone", "light", marks=pytest.mark.deep),
]


@pytest.fixture(scope="module")
def models(smollm2_path, tiny_model, tmp_path_factory):
    """A server of three models, of which one fits at a time, and of a file that is none."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "chat.gguf").symlink_to(smollm2_path)
    shutil.copy(tiny_model("quant_models/Q4_0"), folder / "tiny.gguf")
    shutil.copy(folder / "tiny.gguf", folder / "other.gguf")
    (folder / "broken.gguf").write_bytes(b"GGUF")
    with serving(folder, "--max-models", "1", "--kv-cache-memory", str(64 << 20)) as client:
        yield client


def labels(page):
    """The texts of the choice, by the names of the models."""
    return page.locator("#model").evaluate("one => Object.fromEntries([...one.options].map(o => [o.value, o.text]))")


def without_fault(page):
    """Asserts that axe finds nothing."""
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def unload(models):
    for name in ("chat", "other", "tiny"):
        models.post("/models/unload", json={"model": name}).raise_for_status()


def test_first_choice_is_a_loaded_model_that_chats(chromium, models):
    """By the alphabet it would be the file that is no model."""
    unload(models)
    models.post("/models/load", json={"model": "chat"}).raise_for_status()
    with opened(chromium, models.base_url) as page:
        assert page.get_by_role("combobox", name="Model").input_value() == "chat"
    unload(models)
    # This one is loaded and has no chat template; of the file that is no model, nothing is known.
    models.post("/models/load", json={"model": "tiny"}).raise_for_status()
    with opened(chromium, models.base_url) as page:
        assert page.get_by_role("combobox", name="Model").input_value() == "chat"


def test_a_model_that_cannot_chat_is_told(chromium, models):
    """Before a message, and after one: another try of it would fail as well."""
    unload(models)
    with opened(chromium, models.base_url) as page:
        choice = page.get_by_role("combobox", name="Model")
        expect(page.locator(".welcome")).to_contain_text("chat answers on this machine.")
        choice.select_option("tiny")
        expect(page.locator(".welcome")).to_contain_text("tiny is not a chat model. Choose another one.")
        expect(page.locator(".example")).to_have_count(0)
        without_fault(page)
        ask(page, "Hello!")
        alert = page.get_by_role("article", name="Answer").get_by_role("alert")
        expect(alert).to_have_text("tiny cannot chat. Choose another model, then regenerate this answer.")
        expect(alert.get_by_role("button")).to_have_count(0)
        without_fault(page)
        choice.select_option("chat")
        set_sampling(page, max_tokens=2)
        page.get_by_role("button", name="Regenerate").click()
        answered(page)
        expect(page.locator(".error")).to_have_count(0)


def test_first_token_is_that_of_the_chosen_model(chromium, models):
    """The time that another model took is no figure of this one."""
    models.post("/v1/completions", json={"model": "tiny", "prompt": "ab", "max_tokens": 1}).raise_for_status()
    with opened(chromium, models.base_url) as page:
        choice = page.get_by_role("combobox", name="Model")
        page.get_by_role("link", name="Engine").click()
        tile = page.locator(".tile", has_text="First token").locator("dd").first
        time = re.compile(r"^[\d.]+ m?s$")
        for model, first in (("tiny", time), ("other", "\N{EN DASH}"), ("tiny", time)):
            choice.select_option(model)
            expect(page.locator("#engine-state")).to_contain_text("Live")
            expect(tile).to_have_text(first)


def test_chosen_model_is_loaded_and_answers(chromium, models):
    unload(models)
    with opened(chromium, models.base_url) as page:
        states = {name: f"{name} (not loaded)" for name in ("broken", "chat")}
        states |= {name: f"{name} (cannot chat, not loaded)" for name in ("other", "tiny")}
        assert labels(page) == states
        choice = page.get_by_role("combobox", name="Model")
        choice.select_option("tiny")
        expect(choice.locator("option[value=tiny]")).to_have_text("tiny (cannot chat)")
        choice.select_option("chat")
        expect(choice.locator("option[value=chat]")).to_have_text("chat")
        assert labels(page) == states | {"chat": "chat"}
        expect(page.locator("#load")).to_be_hidden()
        set_sampling(page, max_tokens=4)
        ask(page, "Hello!")
        answered(page)
        assert page.get_by_role("article", name="Answer").inner_text()
        page.get_by_role("link", name="Engine").click()
        expect(page.locator("#engine-state")).to_contain_text("Live")
        page.reload()
        page.wait_for_selector("body[data-ready]")
        assert choice.input_value() == "chat"
        # A message wakes a model, too.
        unload(models)
        page.get_by_role("link", name="Chat", exact=True).click()
        ask(page, "Hello again!")
        answered(page)
        expect(page.get_by_role("article", name="Answer")).to_have_count(2)
        expect(choice.locator("option[value=chat]")).to_have_text("chat")


def test_load_that_fails_is_told(chromium, models):
    with opened(chromium, models.base_url) as page:
        page.get_by_role("combobox", name="Model").select_option("broken")
        expect(page.get_by_role("alert")).to_contain_text("'broken' cannot be loaded")
        expect(page.locator("#model option[value=broken]")).to_have_text("broken (failed)")
        expect(page.locator("#load")).to_be_hidden()
        without_fault(page)
        page.get_by_role("combobox", name="Model").select_option("tiny")
        expect(page.get_by_role("alert")).to_be_hidden()


@pytest.mark.parametrize(("width", "theme"), VIEWS)
def test_progress_is_seen(chromium, models, theme, width):
    """The server holds the load back: a request to the other model runs."""
    unload(models)
    body = {"messages": [{"role": "user", "content": "Tell a story."}], "model": "chat"}
    body |= {"stream": True, "ignore_eos": True, "max_tokens": 1500}
    size = dict(zip(("width", "height"), WIDTHS[width], strict=True))
    with models.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        with opened(chromium, models.base_url, viewport=size, color_scheme=theme) as page:
            page.get_by_role("combobox", name="Model").select_option("tiny")
            expect(page.get_by_role("progressbar", name="Loading tiny")).to_be_visible()
            without_fault(page)
            if FOLDER is not None:
                Path(FOLDER).mkdir(parents=True, exist_ok=True)
                page.screenshot(path=Path(FOLDER) / f"load-{theme}-{width}.png")
            response.close()
            expect(page.locator("#load")).to_be_hidden()
            expect(page.locator("#model option[value=tiny]")).to_have_text("tiny (cannot chat)")
