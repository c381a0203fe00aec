"""Search over conversations, and the keys that work from anywhere."""

import json
import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from page_browser import opened
from playwright.sync_api import expect

pytest_plugins = ("page_fixtures",)


def chat(number, title, *texts):
    roles = ("user", "assistant")
    messages = [
        {"id": f"{number}-{index}", "role": roles[index % 2], "content": text} for index, text in enumerate(texts)
    ]
    return {
        "id": str(number),
        "title": title,
        "created": number,
        "updated": number,
        "settings": {},
        "messages": messages,
    }


CHATS = [
    chat(1, "Bread", "How long does dough rise?", "One hour. " * 200 + "Then knead it (twice) & wait 50% longer."),
    chat(2, "Clocks", "Who repairs clocks?", "A horologist. A baker makes bread."),
    chat(3, "Ünïcode", "😀 <b>STRASSE</b>", "<think>\nA secret word.\n</think>\nNothing."),
]


@pytest.fixture
def chats(page):
    """A page with three conversations, and none of them open."""
    data = json.dumps(CHATS).encode()
    page.locator("#import-file").set_input_files({"name": "a.json", "mimeType": "application/json", "buffer": data})
    expect(page.locator("#conversations li")).to_have_count(3)
    return page


FOUND = {
    "bread": ["Clocks", "Bread"],
    "BREAD clocks": ["Clocks"],
    "dough twice": ["Bread"],
    "(twice) &": ["Bread"],
    "50%": ["Bread"],
    ".": ["Ünïcode", "Clocks", "Bread"],
    ".*": [],
    "ÜNÏ": ["Ünïcode"],
    "<b>strasse": ["Ünïcode"],
    "😀": ["Ünïcode"],
    "secret": [],
    "\\": [],
    "  ": ["Ünïcode", "Clocks", "Bread"],
}


def test_words_are_found(chats):
    """In titles and in what is shown of messages, in any case and order; a thought is not searched."""
    field = chats.get_by_role("searchbox", name="Search conversations")
    state = chats.locator("#search-state")
    for query, titles in FOUND.items():
        field.fill(query)
        expect(chats.locator("#conversations .name")).to_have_text(titles)
        if query.strip():
            expect(state).to_have_text(f"{len(titles)} found" if titles else "No chat has all of these words.")
        else:
            expect(state).to_be_empty()


def test_found_message_is_shown(chats):
    field = chats.get_by_role("searchbox", name="Search conversations")
    field.fill("knead")
    expect(chats.locator("#conversations mark")).to_have_text("knead")
    expect(chats.locator("#conversations .piece")).to_have_text(re.compile(r"^….{24}knead it \(twice\) & wait"))
    assert Axe().run(chats).violations_count == 0
    field.press("Enter")
    expect(chats.locator("#title")).to_have_text("Bread")
    # The answer is longer than the window: its beginning is shown, and not its end.
    answer = chats.get_by_role("article", name="Answer")
    expect(chats.get_by_role("textbox", name="Message")).to_be_focused()
    assert answer.evaluate("one => one.getBoundingClientRect().top - one.parentNode.getBoundingClientRect().top") < 60
    field.focus()
    field.press("Escape")
    expect(field).to_have_value("")
    expect(chats.locator("#conversations li")).to_have_count(3)


def test_keys_work_from_anywhere(chats):
    field = chats.get_by_role("searchbox", name="Search conversations")
    message = chats.get_by_role("textbox", name="Message")
    assert field.get_attribute("title") == "Search (Ctrl+K)"
    assert chats.get_by_role("button", name="New chat").get_attribute("title") == "New chat (Ctrl+Shift+O)"
    expect(message).to_be_focused()
    chats.keyboard.press("Control+K")
    expect(field).to_be_focused()
    field.fill("clocks")
    chats.keyboard.press("Enter")
    expect(chats.locator("#title")).to_have_text("Clocks")
    chats.keyboard.press("Control+Shift+O")
    expect(chats.locator("#title")).to_have_text("New chat")
    expect(message).to_be_focused()
    expect(field).to_have_value("")
    # The chat is shown first, and a dialog keeps the keys.
    for key, focused in (("Control+K", field), ("Control+Shift+O", message)):
        chats.get_by_role("link", name="Engine").click()
        expect(message).to_be_hidden()
        chats.keyboard.press(key)
        expect(focused).to_be_focused()
    chats.get_by_role("button", name="Settings").click()
    chats.keyboard.press("Control+K")
    expect(chats.get_by_label("System prompt")).to_be_focused()


def test_search_on_a_phone(chromium, server):
    """The list opens for the search, and closes by a second Escape."""
    with opened(chromium, server.base_url, viewport={"width": 390, "height": 844}) as page:
        page.keyboard.press("Control+K")
        field = page.get_by_role("searchbox", name="Search conversations")
        expect(field).to_be_focused()
        page.keyboard.type("nothing")
        expect(page.locator("#search-state")).to_have_text("No chat has all of these words.")
        page.wait_for_timeout(300)
        assert Axe().run(page).violations_count == 0
        page.keyboard.press("Escape")
        expect(field).to_be_focused()
        page.keyboard.press("Escape")
        expect(page.locator("#menu")).to_be_focused()
