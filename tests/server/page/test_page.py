"""The page at `/` in a real browser, before a real server with the real model."""

import base64
import json
import re

import httpx
import numpy as np
import rocmforge
from axe_playwright_python.sync_playwright import Axe
from page_browser import LONG, answered, ask, opened, put_answer, serving, set_sampling, settled
from playwright.sync_api import expect

pytest_plugins = ("page_fixtures",)

HOSTILE = """
<script>window.hacked = 1</script><img src=x onerror="window.hacked = 2">
<iframe srcdoc="<script>parent.hacked = 3</script>"></iframe>

[one](javascript:window.hacked=4) [two](data:text/html,<script>window.hacked=5</script>) [three](JaVaScRiPt:alert(1))
![picture](https://example.invalid/pixel.png) <javascript:window.hacked=6> [four](vbscript:x) [five](//example.invalid)

```"><script>window.hacked = 7</script>
</code><script>window.hacked = 8</script>
```

| <svg onload="window.hacked = 9"> | b |
|---|---|
| <a href="javascript:window.hacked=10">x</a> | `<b onclick="window.hacked=11">` |

$\\text{<script>window.hacked = 12</script>}$ $\\href{javascript:window.hacked=13}{x}$ <style>body{display:none}</style>
"""


def exported(page, number=0):
    """The conversation as the page hands it out."""
    with page.expect_download() as download:
        page.locator("#conversations li").nth(number).hover()
        page.get_by_role("button", name=re.compile("^Export “")).nth(number).click()
    return json.loads(download.value.path().read_text(encoding="utf-8"))


def test_files(server):
    """Each file has its type, a name of its content, and a policy that lets no text become script."""
    index = server.get("/")
    assert index.headers["content-type"] == "text/html; charset=utf-8"
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=", index.text)
    addresses = re.findall(r'(?:src|href)="([^"#]+)"', index.text)
    assert len(addresses) > 5
    kinds = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}
    for address in addresses:
        assert not re.match(r"\w+:|//", address)
        file = server.get("/" + address)
        assert file.status_code == 200
        assert file.headers["content-type"] == kinds[address.rpartition(".")[2]]
    policy = dict(part.split(" ", 1) for part in index.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert index.headers["x-content-type-options"] == "nosniff"
    same = server.get("/", headers={"If-None-Match": index.headers["etag"]})
    assert (same.status_code, same.content) == (304, b"")
    assert server.get("/", headers={"If-None-Match": '"other"'}).status_code == 200
    assert server.head("/").status_code == 200
    for nothing in ("/page/", "/page/nothing.js", "/page/../page.py", "/page/%2e%2e/page.py", "/page/index.html"):
        assert server.get(nothing).status_code == 404


def test_answer_is_the_engines(page, smollm2_path, assert_nothing_left):
    """A typed question gets what the engine itself says, by greedy choice and with a seed."""
    system, question = "Answer in one sentence.", "What is the capital of France?"
    set_sampling(page, system=system, temperature=0, repetition_penalty=1.1, max_tokens=40)
    ask(page, question)
    answered(page)
    set_sampling(page, temperature=0.9, top_p=0.9, top_k=50, min_p=0.02, seed=11)
    ask(page, "And of Italy?")
    answered(page)
    said = exported(page)["messages"]
    with rocmforge.LLM(smollm2_path, num_threads=1, kv_cache_memory=64 << 20) as engine:
        recommended = engine.recommended_sampling()
        greedy = recommended | {"temperature": 0.0, "repetition_penalty": 1.1}
        chat = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        first = engine.chat(chat, rocmforge.SamplingParams(**greedy, max_tokens=40))
        sampled = recommended | {"temperature": 0.9, "top_p": 0.9, "top_k": 50, "min_p": 0.02, "seed": 11}
        sampled |= {"repetition_penalty": 1.1}
        chat += [{"role": "assistant", "content": said[1]["content"]}, {"role": "user", "content": "And of Italy?"}]
        second = engine.chat(chat, rocmforge.SamplingParams(**sampled, max_tokens=40))
        assert_nothing_left(engine)
    assert [said[1]["content"], said[3]["content"]] == [one.outputs[0].text for one in (*first, *second)]
    assert said[3]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    shown = page.get_by_role("article", name="Answer").first.locator(".markdown").last.inner_text()
    assert "Paris" in shown
    assert shown.split() == said[1]["content"].split()


def test_stop(page, server):
    """The engine's request ends within moments; what came stays."""
    before = settled(server)
    set_sampling(page, temperature=0)
    ask(page, LONG)
    answer = page.get_by_role("article", name="Answer")
    expect(answer.locator(".markdown p").first).to_contain_text(" ")
    assert len(server.get("/v1/engine/requests").json()["requests"]) == 1
    page.get_by_role("button", name="Stop").click()
    after = settled(server)
    assert after["num_finished"]["abort"] == before["num_finished"]["abort"] + 1
    expect(answer).to_contain_text("Stopped.")
    expect(answer.locator(".figures")).to_have_text(re.compile(r"^\d+ tokens · [\d.]+ tokens/s · first token after "))
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    assert exported(page)["messages"][1]["state"] == "stopped"


def test_regenerate_and_edit(page):
    set_sampling(page, temperature=1.5, max_tokens=24)
    ask(page, "Invent a name for a horse.")
    answered(page)
    set_sampling(page, seed=5)
    ask(page, "Another one.")
    answered(page)
    texts = page.locator(".user .plain")
    old = exported(page)["messages"]
    page.get_by_role("button", name="Regenerate").last.click()
    answered(page)
    new = exported(page)["messages"]
    # With the same seed, the answer is another message with the same text.
    assert [message["id"] for message in new[:3]] == [message["id"] for message in old[:3]]
    assert new[3]["id"] != old[3]["id"]
    assert new[3]["content"] == old[3]["content"]
    expect(texts).to_have_text(["Invent a name for a horse.", "Another one."])
    page.get_by_role("button", name="Edit message").first.click()
    page.get_by_role("textbox", name="Edit message").fill("Invent a name for a dog.")
    page.get_by_role("article").get_by_role("button", name="Send").click()
    answered(page)
    # The messages after the edited one are gone.
    expect(texts).to_have_text(["Invent a name for a dog."])
    assert [message["role"] for message in exported(page)["messages"]] == ["user", "assistant"]


def test_conversations_are_kept(page):
    set_sampling(page, temperature=0, max_tokens=8)
    ask(page, "First conversation")
    answered(page)
    page.get_by_role("button", name="New chat").click()
    ask(page, "Second conversation")
    answered(page)
    page.reload()
    names = page.locator("#conversations .name")
    expect(names).to_have_text(["Second conversation", "First conversation"])
    # A reload comes back to where the reader was.
    expect(page.locator(".user .plain")).to_have_text("Second conversation")
    names.nth(1).click()
    expect(page.locator(".user .plain")).to_have_text("First conversation")
    assert exported(page, 1)["settings"] == {"temperature": 0, "max_tokens": 8}
    page.get_by_role("button", name="Rename “First conversation”").click()
    page.locator("#question-value").fill("A better name")
    page.keyboard.press("Enter")
    expect(names).to_have_text(["Second conversation", "A better name"])
    page.get_by_role("button", name="Delete “Second conversation”").focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(names).to_have_text(["A better name"])
    page.reload()
    expect(names).to_have_text(["A better name"])


def test_hostile_text_is_text(page):
    """No script runs, nothing is loaded (the fixture sees to it), and no link leads anywhere but to a site."""
    set_sampling(page, temperature=0, max_tokens=4)
    ask(page, HOSTILE)
    answered(page)
    put_answer(page, HOSTILE)
    answer = page.get_by_role("article", name="Answer").locator(".markdown").last
    expect(answer).to_contain_text("<script>window.hacked = 1</script>")
    found = page.evaluate("[...document.querySelectorAll('.message *')].map((node) => node.localName)")
    assert not {"script", "iframe", "style", "img", "object", "embed", "form", "base"} & set(found)
    links = page.evaluate("[...document.querySelectorAll('.message a')].map((node) => node.protocol + node.rel)")
    assert links == ["https:noopener noreferrer nofollow"]
    assert page.evaluate("window.hacked") is None


def test_policy_forbids_html_of_a_text(chromium, server):
    """The policy holds for the page's own code: a slip in it would be an error and no hole."""
    page = chromium.new_page()
    page.goto(str(server.base_url))
    for attempt in (
        "document.body.innerHTML = '<b>x</b>'",
        "document.body.insertAdjacentHTML('beforeend', '<b>x</b>')",
    ):
        name = page.evaluate(f"() => {{ try {{ {attempt}; return 'done'; }} catch (error) {{ return error.name; }} }}")
        assert name == "TypeError"
    page.close()


def test_thinking_is_folded(page):
    set_sampling(page, temperature=0, max_tokens=4)
    ask(page, "x")
    answered(page)
    put_answer(page, "<think>\nFirst *this*.\n</think>\n\nThe **answer**.")
    answer = page.get_by_role("article", name="Answer")
    expect(answer.locator("details")).not_to_have_attribute("open", "")
    expect(answer.locator("strong")).to_have_text("answer")
    expect(answer.locator("em")).not_to_be_visible()
    answer.locator("summary").click()
    expect(answer.locator("em")).to_be_visible()
    assert "think>" not in answer.inner_text()


def test_engine_view(page, server):
    """The map of blocks changes while a request runs, and says in words what it shows."""
    page.get_by_role("link", name="Engine").click()
    canvas = page.locator("#block-map")
    total = server.get("/v1/engine/stats").json()["blocks_total"]
    expect(canvas).to_have_attribute("aria-label", re.compile(rf"^Map of {total} blocks"))
    before = canvas.evaluate("(canvas) => canvas.toDataURL()")
    body = {"messages": [{"role": "user", "content": LONG}], "stream": True, "temperature": 0, "max_tokens": 2000}
    body["ignore_eos"] = True
    with server.stream("POST", "/v1/chat/completions", json=body) as response:
        # A reader that nobody holds would close the stream.
        lines = response.iter_lines()
        next(lines)
        expect(page.locator("#block-legend [data-kind=owned]")).not_to_have_text("0")
        expect(page.locator("#requests li")).to_have_count(1)
        expect(page.locator("#requests li")).to_contain_text(
            re.compile(r"^Chat completion [0-9a-f]{6}generating.* \d+ cached: the rest is .* of 2000 · [\d.]+ tokens/s")
        )
        expect(canvas).to_have_attribute("aria-label", re.compile(" [1-9][0-9]* owned by one sequence"))
        assert canvas.evaluate("(canvas) => canvas.toDataURL()") != before
        expect(page.locator(".tile", has_text="First token").locator("dd").first).to_have_text(
            re.compile(r"^\d+ ms$|s$")
        )
    expect(page.locator("#block-legend [data-kind=owned]")).to_have_text("0")
    expect(page.locator("#requests")).to_have_text("No request of yours runs.")
    expect(page.locator("#block-legend [data-kind=cached]")).not_to_have_text("0")
    canvas.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#block-detail")).to_have_text(re.compile(r"^Block 0: (cached, idle for|free)"))
    # The map of the blocks in use alone begins with the first of them.
    height = canvas.bounding_box()["height"]
    page.get_by_role("button", name="Used only", pressed=False).click()
    states = server.get("/v1/engine/blocks").json()["state"]
    used = [block for block, state in enumerate(states) if state]
    expect(page.locator("#block-total")).to_have_text(f"{len(used)} of {total:,} blocks")
    assert canvas.bounding_box()["height"] < height
    canvas.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#block-detail")).to_have_text(re.compile(rf"^Block {used[0]}: cached, idle for"))
    page.get_by_role("button", name="Used only", pressed=True).click()
    expect(page.locator("#block-total")).to_have_text(re.compile(rf"^{total:,} blocks"))
    expect(page.locator("#slots")).not_to_be_visible()
    memory = server.get("/v1/engine/memory").json()
    assert page.locator("#memory tbody tr").count() == len(memory) - 1
    stats = server.get("/v1/engine/stats").json()
    for part, count in (stats["prefix_cache_misses"] | {"found": stats["prefix_cache_hits"]}).items():
        expect(page.locator(f"#prefixes [data-part={part}] td").first).to_have_text(f"{count:,}")
    # It asks while it is seen, and not else.
    page.get_by_role("link", name="Chat", exact=True).click()
    page.wait_for_timeout(1500)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(2000)
    assert asked == []


def test_slots_of_states(chromium, tiny_model):
    """A model with recurrent states has a map of their slots as well; its snapshots are the cached ones."""
    with serving(tiny_model("arch/qwen35"), "--max-model-len", "256", "--state-snapshot-interval", "16") as client:
        client.post("/v1/completions", json={"prompt": list(range(1, 100)), "max_tokens": 4}).raise_for_status()
        stats = settled(client)
        assert stats["state_slots_cached"] > 1
        plain = client.get("/v1/engine/blocks").json()
        states = [plain["states"][state] for state in plain["state_slots"]["state"]]
        assert (len(states), states.count("cached")) == (stats["state_slots_total"], stats["state_slots_cached"])
        with opened(chromium, client.base_url) as page:
            page.get_by_role("link", name="Engine").click()
            counts = f"{stats['state_slots_free']} free, {stats['state_slots_cached']} cached, 0 owned by one sequence"
            canvas = page.locator("#slot-map")
            expect(canvas).to_have_attribute(
                "aria-label", re.compile(rf"^Map of {stats['state_slots_total']} slots: {counts}")
            )
            canvas.focus()
            page.keyboard.press("ArrowRight")
            expect(page.locator("#slot-detail")).to_have_text(re.compile(r"^Slot 0: (cached, idle for|free)"))
            assert Axe().run(page).violations_count == 0


def test_packed_blocks_are_the_blocks(server):
    """The packed form says what the plain one says."""
    plain = server.get("/v1/engine/blocks").json()
    packed = server.get("/v1/engine/blocks?packed=true").json()
    state, owners = (list(base64.b64decode(packed[name])) for name in ("state", "owners"))
    idle = np.frombuffer(base64.b64decode(packed["idle_deciseconds"]), "<u2") / 10
    assert packed["num_blocks"] == len(plain["state"]) == len(idle)
    assert packed["states"] == plain["states"]
    assert (state, owners) == (plain["state"], plain["owners"])
    # Time passes between the two answers.
    late = idle - np.array(plain["idle_seconds"])
    assert late.min() > -0.11
    assert late.max() < 5
    assert server.get("/v1/engine/blocks?packed=perhaps").status_code == 400


def test_key(chromium, smollm2_path):
    """The page loads without a key, asks for it, and keeps it; a client sees its own requests alone."""
    options = ["--kv-cache-memory", str(64 << 20), "--admin-key", "good", "--api-key", "other"]
    with serving(smollm2_path, *options, headers={"x-api-key": "good"}) as client:
        for path, status in (("/v1/models", 401), ("/page/js/main.js", 200), ("/v1/engine/requests", 401)):
            assert httpx.get(f"{client.base_url}{path}").status_code == status
        with opened(chromium, client.base_url, wait=False) as page:
            dialog = page.get_by_role("dialog", name="API key")
            dialog.get_by_label("Key").fill("wrong")
            page.keyboard.press("Enter")
            expect(dialog).to_contain_text("does not know the key")
            dialog.get_by_label("Key").fill("good")
            dialog.get_by_role("button", name="Continue").click()
            page.wait_for_selector("body[data-ready]")
            page.reload()
            page.wait_for_selector("body[data-ready]")
            expect(dialog).not_to_be_visible()
            ask(page, LONG)
            expect(page.locator(".markdown p").first).to_contain_text(" ")
            seen = {
                key: client.get("/v1/engine/requests", headers={"Authorization": f"Bearer {key}"}).json()["requests"]
                for key in ("good", "other")
            }
            assert [len(requests) for requests in seen.values()] == [1, 0]
            assert seen["good"][0]["generated_tokens"] > 0
            page.get_by_role("button", name="Stop").click()
            answered(page)
            page.get_by_role("button", name="Forget API key").click()
            expect(dialog).to_be_visible()
