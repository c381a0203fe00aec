"""Import of conversations: what the page exported comes back, and any other file is refused in words."""

import copy
import json
import re

from page_browser import answered, ask, opened, set_sampling
from playwright.sync_api import expect

pytest_plugins = ("page_fixtures",)

ANSWER = {
    "id": "a2",
    "role": "assistant",
    "content": "<script>window.hacked = 1</script>",
    "thinking": "",
    "state": "streaming",
    "usage": {"completion_tokens": 3, "prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0}},
    "seconds": 1.5,
    "firstToken": 0.5,
}
CHAT = {
    "id": "c1",
    "title": "Imported <b>chat</b>",
    "created": 1,
    "updated": 2,
    "settings": {"temperature": 0, "system": "Be brief."},
    "messages": [{"id": "a1", "role": "user", "content": "Hello"}, ANSWER],
}


def choose(page, content, name="chats.json"):
    """Chooses a file in the browser's dialog."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Import").click()
    chooser.value.set_files({"name": name, "mimeType": "application/json", "buffer": data})


def changed(path, value=None):
    """The conversation with another value at a path; None removes the field."""
    chat = copy.deepcopy(CHAT)
    *way, last = path
    place = chat
    for step in way:
        place = place[step]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return chat


# A file, and what the page says of it.
REFUSED = {
    "no JSON": (b"{", "chats.json is no JSON file"),
    "a number": (3, "chats.json has 3; expected conversations that this page exported."),
    "a list of numbers": ([CHAT, 3], "Conversation 2: got 3, expected an object."),
    "no messages": (changed(["messages"]), 'Conversation 1 has no "messages".'),
    "an unknown field": (changed(["owner"], "me"), 'Conversation 1 has the unknown field "owner".'),
    "a prototype": (changed(["__proto__"], {}), 'Conversation 1 has the unknown field "__proto__".'),
    "messages that are none": (changed(["messages"], "Hi"), '"messages": got "Hi", expected a list.'),
    "a title that is no text": (changed(["title"], 5), 'Conversation 1, "title": got 5, expected a text.'),
    "another role": (
        changed(["messages", 0, "role"], "system"),
        'Conversation 1, "messages", number 1, "role": got "system", expected "user" or "assistant".',
    ),
    "content in parts": (
        changed(["messages", 1, "content"], [{}]),
        'number 2, "content": got a list, expected a text.',
    ),
    "an unknown setting": (changed(["settings", "best_of"], 2), 'has the unknown setting "best_of".'),
    "a setting as a text": (changed(["settings", "seed"], "1"), '"seed": got "1", expected a number.'),
    "figures that are none": (changed(["messages", 1, "usage"], {}), '"completion_tokens": got nothing, expected a'),
    "versions that are none": (changed(["messages", 1, "versions"], [[]]), '"versions": got 0, expected one null'),
}


def test_export_comes_back(page):
    """One browser imports what another exports; a second import adds nothing."""
    set_sampling(page, temperature=0, max_tokens=8, system="Be brief.")
    for text in ("First", "Second"):
        page.get_by_role("button", name="New chat").click()
        ask(page, text)
        answered(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="Export all").click()
    content = download.value.path().read_bytes()
    assert len(json.loads(content)) == 2
    state = page.locator("#import-state")
    choose(page, content)
    expect(state).to_have_text("0 of 2 imported. The others were here already.")
    # A chat that has changed since stays as it is, and the file's is added.
    page.locator("#conversations li", has_text="Second").hover()
    page.get_by_role("button", name="Rename “Second”").click()
    page.locator("#question-value").fill("Third")
    page.keyboard.press("Enter")
    names = page.locator("#conversations .name")
    expect(names).to_have_text(["Third", "First"])
    choose(page, content)
    expect(state).to_have_text("1 of 2 imported. The others were here already.")
    expect(names).to_have_text(["Third", "Second", "First"])
    with opened(page.context.browser, page.url) as other:
        choose(other, content)
        expect(other.locator("#import-state")).to_have_text("2 of 2 imported.")
        other.reload()
        other.locator("#conversations .open-conversation").first.click()
        expect(other.locator(".user .plain")).to_have_text("Second")
        with other.expect_download() as again:
            other.get_by_role("button", name="Export all").click()
        theirs = json.loads(again.value.path().read_bytes())
    assert theirs == json.loads(content)


def test_one_chat_is_imported_as_text(page):
    choose(page, CHAT)
    expect(page.locator("#import-state")).to_have_text("1 of 1 imported.")
    page.get_by_text("Imported <b>chat</b>").click()
    answer = page.get_by_role("article", name="Answer")
    expect(answer).to_contain_text("<script>window.hacked = 1</script>")
    expect(answer).to_contain_text("Interrupted")
    expect(answer).to_contain_text("3 tokens")
    assert page.evaluate("window.hacked") is None
    # Both in the list and above the messages.
    expect(page.get_by_text("Imported <b>chat</b>")).to_have_count(2)


def test_other_files_are_refused(page):
    for content, words in REFUSED.values():
        choose(page, content)
        expect(page.locator("#import-state")).to_contain_text(words)
    expect(page.locator("#conversations li")).to_have_count(0)


def test_deep_versions_are_refused(page):
    message = dict(ANSWER)
    for _ in range(300):
        message = ANSWER | {"versions": [[message], None]}
    choose(page, changed(["messages", 1], message))
    expect(page.locator("#import-state")).to_contain_text(re.compile("more than 200 versions in each other"))


def test_large_file_is_refused(page, tmp_path):
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate(65 << 20)
    page.locator("#import-file").set_input_files(large)
    expect(page.locator("#import-state")).to_have_text("large.json has 65 MB; at most 64 MB can be imported.")
