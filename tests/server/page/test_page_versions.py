"""Versions of a message: what regenerating and editing would replace is kept, with all that followed it."""

import json

import pytest
from axe_playwright_python.sync_playwright import Axe
from page_browser import answered, ask, set_sampling
from playwright.sync_api import expect

pytest_plugins = ("page_fixtures",)


def exported(page):
    """All conversations as the page hands them out."""
    with page.expect_download() as download:
        page.get_by_role("button", name="Export all").click()
    return json.loads(download.value.path().read_text(encoding="utf-8"))


def contents(messages):
    return [message["content"] for message in messages]


def test_regenerated_answers_are_kept(page):
    """The old answer stays with what followed it, in the conversation, in the browser and in its export."""
    set_sampling(page, temperature=0, max_tokens=6)
    ask(page, "One")
    answered(page)
    ask(page, "Two")
    answered(page)
    old = contents(exported(page)[0]["messages"])
    set_sampling(page, temperature=1.5, seed=3)
    page.get_by_role("button", name="Regenerate").first.click()
    answered(page)
    versions = page.get_by_role("group", name="Version 2 of 2")
    expect(versions).to_contain_text("2/2")
    new = exported(page)[0]["messages"]
    assert len(new) == 2
    assert new[1]["content"] != old[1]
    assert contents(new[1]["versions"][0]) == old[1:]
    assert new[1]["versions"][1] is None
    assert Axe().run(page).violations_count == 0
    page.reload()
    versions.get_by_role("button", name="Previous version").click()
    expect(page.locator(".user .plain")).to_have_text(["One", "Two"])
    assert contents(exported(page)[0]["messages"]) == old
    # The engine gets the messages of this version.
    set_sampling(page, temperature=0)
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "Three")
    assert contents(sent.value.post_data_json["messages"]) == [*old, "Three"]
    answered(page)
    page.get_by_role("button", name="Next version").click()
    expect(page.locator(".user .plain")).to_have_text(["One"])
    page.get_by_role("button", name="Previous version").click()
    expect(page.locator(".user .plain")).to_have_text(["One", "Two", "Three"])


def test_versions_by_keyboard(page):
    """The focus stays on the button that was pressed, and the version is read out; at an end it does nothing."""
    set_sampling(page, temperature=0, max_tokens=2)
    ask(page, "Hello")
    answered(page)
    for _ in range(2):
        page.get_by_role("button", name="Regenerate").click()
        answered(page)
    expect(page.get_by_role("group", name="Version 3 of 3")).to_be_visible()
    before = page.get_by_role("button", name="Previous version")
    before.focus()
    for number in (2, 1, 1):
        page.keyboard.press("Enter")
        expect(page.get_by_role("group", name=f"Version {number} of 3")).to_be_visible()
        expect(before).to_be_focused()
        expect(page.locator("#announcer p").last).to_have_text(f"Version {number} of 3")
    expect(before).to_have_attribute("aria-disabled", "true")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    expect(page.get_by_role("group", name="Version 2 of 3")).to_be_visible()


def test_edited_question_is_kept(page):
    set_sampling(page, temperature=0, max_tokens=4)
    ask(page, "Old question")
    answered(page)
    page.get_by_role("button", name="Edit message").first.click()
    page.get_by_role("textbox", name="Edit message").fill("New question")
    page.get_by_role("article").get_by_role("button", name="Send").click()
    answered(page)
    question = page.get_by_role("article", name="You")
    expect(question).to_contain_text("New question")
    question.get_by_role("button", name="Previous version").click()
    expect(question).to_contain_text("Old question")
    expect(page.get_by_role("article", name="Answer")).to_have_count(1)


def test_failed_answer_is_no_version(page):
    set_sampling(page, temperature=-1, max_tokens=4)
    ask(page, "Hello")
    expect(page.locator(".error")).to_be_visible()
    page.get_by_role("button", name="Open settings").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_role("button", name="Done").click()
    page.get_by_role("button", name="Try again").click()
    answered(page)
    expect(page.locator(".error")).to_have_count(0)
    expect(page.get_by_role("group", name="Version")).to_have_count(0)


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 2, 0]])
def test_versions_in_versions(page, order):
    """Whatever version is shown in whatever order, no message is lost."""
    found = page.evaluate(
        """async (order) => {
          const { addVersions, setAside, switchVersion, versionOf } = await import("/page/js/chat/versions.js");
          const message = (content) => ({ content });
          const messages = ["q1", "a1", "q2", "a2"].map(message);
          const again = (at, content) => {
            const versions = setAside(messages, at);
            messages.push(message(content));
            addVersions(messages[at], versions);
          };
          again(3, "a2b");
          again(1, "a1b");
          messages.push(message("q3"));
          again(1, "a1c");
          const texts = [];
          for (const number of order) {
            while (versionOf(messages[1]).number !== number + 1) {
              const step = Math.sign(number + 1 - versionOf(messages[1]).number);
              switchVersion(messages, messages[1], step);
            }
            texts.push(messages.map(({ content }) => content));
          }
          while (versionOf(messages[1]).number > 1) switchVersion(messages, messages[1], -1);
          const inner = switchVersion(messages, messages[3], -1);
          return [texts, inner.content, switchVersion(messages, inner, -1), messages.length];
        }""",
        order,
    )
    branches = [["q1", "a1", "q2", "a2b"], ["q1", "a1b", "q3"], ["q1", "a1c"]]
    assert found == [[branches[number] for number in order], "a2", None, 4]
