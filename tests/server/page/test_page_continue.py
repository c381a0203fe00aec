"""Continue: an answer that ended early goes on where it was."""

import json
import re

from axe_playwright_python.sync_playwright import Axe
from page_browser import LONG, answered, ask, set_sampling, settled
from playwright.sync_api import expect

pytest_plugins = ("page_fixtures",)


def exported(page):
    """The messages of the only conversation."""
    with page.expect_download() as download:
        page.get_by_role("button", name="Export all").click()
    return json.loads(download.value.path().read_text(encoding="utf-8"))[0]["messages"]


def test_answer_goes_on_at_its_limit(page, server):
    """Two halves are the text of one answer, and their figures add up."""
    body = {"messages": [{"role": "user", "content": LONG}], "temperature": 0, "max_tokens": 24}
    whole = server.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
    set_sampling(page, temperature=0, max_tokens=12)
    ask(page, LONG)
    answered(page)
    first = exported(page)[1]
    assert whole.startswith(first["content"])
    assert Axe().run(page).violations_count == 0
    with page.expect_request("**/v1/chat/completions") as sent:
        page.get_by_role("button", name="Continue").click()
    assert sent.value.post_data_json["continue_final_message"] is True
    assert sent.value.post_data_json["messages"][-1] == {"role": "assistant", "content": first["content"]}
    answered(page)
    second = exported(page)[1]
    assert second["id"] == first["id"]
    assert second["content"] == whole
    assert second["usage"] == first["usage"] | {"completion_tokens": 24}
    assert second["seconds"] > first["seconds"]
    assert second["firstToken"] == first["firstToken"]
    answer = page.get_by_role("article", name="Answer")
    expect(answer).to_have_count(1)
    expect(answer).to_contain_text("24 tokens")
    # The first part is not read out twice.
    said = page.locator("#announcer p").all_inner_texts()
    said = " ".join(text for text in said if text not in ("Answering", "The answer is complete"))
    assert said.split() == answer.locator(".markdown").last.inner_text().split()


def test_stopped_answer_goes_on(page, server):
    """Only the last answer can go on, also after the page was loaded anew."""
    set_sampling(page, temperature=0)
    ask(page, LONG)
    expect(page.get_by_role("article", name="Answer").locator(".markdown p").first).to_contain_text(" ")
    page.get_by_role("button", name="Stop").click()
    answered(page)
    settled(server)
    stopped = exported(page)[1]
    before = stopped["content"]
    page.reload()
    set_sampling(page, max_tokens=5)
    page.get_by_role("button", name="Continue").click()
    answered(page)
    expect(page.get_by_role("article", name="Answer")).to_contain_text("limit of tokens")
    after = exported(page)[1]
    assert after["content"].startswith(before)
    assert after["content"] != before
    assert after["usage"]["completion_tokens"] == stopped["usage"]["completion_tokens"] + 5
    ask(page, "Hello")
    answered(page)
    expect(page.get_by_role("button", name="Continue")).to_have_count(1)
    expect(page.get_by_role("article", name="Answer").last.get_by_role("button", name="Continue")).to_be_visible()


def test_answer_that_cannot_go_on(page):
    """An end of the model's own offers nothing; a refusal leaves the text and says why."""
    set_sampling(page, temperature=0, max_tokens=4)
    ask(page, LONG)
    answered(page)
    before = exported(page)[1]["content"]
    set_sampling(page, temperature=-1)
    page.get_by_role("button", name="Continue").click()
    alert = page.get_by_role("article", name="Answer").get_by_role("alert")
    expect(alert).to_contain_text(re.compile("temperature: got -1"))
    assert exported(page)[1]["content"] == before
    alert.get_by_role("button", name="Open settings").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_role("button", name="Done").click()
    alert.get_by_role("button", name="Continue").click()
    answered(page)
    expect(page.locator(".error")).to_have_count(0)
    assert len(exported(page)[1]["content"]) > len(before)
    page.get_by_role("button", name="New chat").click()
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_label("Max tokens").fill("")
    page.get_by_role("button", name="Done").click()
    ask(page, "Say only the word yes.")
    answered(page)
    expect(page.get_by_role("article", name="Answer")).to_be_visible()
    expect(page.get_by_role("button", name="Continue")).to_have_count(0)
