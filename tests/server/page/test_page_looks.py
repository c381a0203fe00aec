"""The page in both themes and at both widths: found without fault by axe, usable by keyboard, and seen.

With ROCMFORGE_PAGE_SCREENSHOTS=FOLDER in the environment, pictures are written there.
"""

import os
import threading
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from page_browser import LONG, answered, ask, opened, put_answer, set_sampling
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
ANSWER = """<think>
The user asks about attention. I should give the formula, a table and code.
</think>

**Attention** compares a query with all keys and mixes the values by the result:

$$
\\operatorname{Attention}(Q, K, V) = \\operatorname{softmax}\\left(\\frac{QK^\\top}{\\sqrt{d_k}}\\right) V
$$

Its cost grows with the *square* of the length $n$:

| Step | Time | Memory |
|:-----|:----:|-------:|
| $QK^\\top$ | $O(n^2 d)$ | $O(n^2)$ |
| softmax | $O(n^2)$ | $O(n^2)$ |

```python
def attention(q, k, v):
    scores = q @ k.T / sqrt(k.shape[-1])
    return softmax(scores) @ v
```

1. A **cache** keeps keys and values; see the [paper](https://arxiv.org/abs/2309.06180).
2. Its blocks are shared by prefixes:
   - found by `hash`
   - freed when *nobody* owns them

> A block that nobody owns is not lost: it waits for the next prompt.
"""


def without_fault(page):
    """Asserts that axe finds nothing."""
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def seen(page, name):
    if FOLDER is not None:
        Path(FOLDER).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(FOLDER) / f"{name}.png")


def load(server, done):
    """Keeps the engine busy with requests of two kinds, some of which share their beginning, until `done`."""

    def one(text):
        body = {"messages": [{"role": "user", "content": text}], "stream": True, "max_tokens": 2000, "ignore_eos": True}
        with server.stream("POST", "/v1/chat/completions", json=body) as response:
            for _ in response.iter_lines():
                if done.is_set():
                    return

    threads = [threading.Thread(target=one, args=(LONG * 20 + ending,)) for ending in ("", "a", "b")]
    for thread in threads:
        thread.start()
    return threads


@pytest.mark.parametrize(("width", "theme"), VIEWS)
def test_looks(chromium, server, theme, width):
    """Every view and dialog."""
    options = {"color_scheme": theme, "viewport": dict(zip(("width", "height"), WIDTHS[width], strict=True))}
    with opened(chromium, server.base_url, has_touch=width == "phone", **options) as page:
        name = f"{width}-{theme}"
        seen(page, f"{name}-welcome")
        without_fault(page)
        set_sampling(page, temperature=0, max_tokens=8)
        for question in ("What is a KV cache?", "How does attention work?"):
            if page.locator("#menu").is_visible():
                page.locator("#menu").click()
            page.get_by_role("button", name="New chat").click()
            page.get_by_role("textbox", name="Message").fill(question)
            page.get_by_role("button", name="Send", exact=True).click()
            answered(page)
        put_answer(page, ANSWER)
        page.locator("#messages").evaluate("(messages) => { messages.scrollTop = 0; }")
        without_fault(page)
        seen(page, f"{name}-chat")
        page.locator("#messages").evaluate("(messages) => { messages.scrollTop = 1e6; }")
        seen(page, f"{name}-chat-end")
        if page.locator("#menu").is_visible():
            page.locator("#menu").click()
            expect(page.get_by_role("button", name="New chat")).to_be_focused()
            page.wait_for_timeout(300)
            without_fault(page)
            seen(page, f"{name}-conversations")
            page.keyboard.press("Escape")
            expect(page.locator("#menu")).to_be_focused()
        page.get_by_role("button", name="Settings").click()
        without_fault(page)
        seen(page, f"{name}-settings")
        page.keyboard.press("Escape")
        set_sampling(page, temperature=-1)
        page.get_by_role("button", name="Regenerate").click()
        expect(page.locator(".error")).to_be_visible()
        without_fault(page)
        seen(page, f"{name}-error")
        page.get_by_role("link", name="Engine").click()
        done = threading.Event()
        threads = load(server, done)
        expect(page.locator("#requests li")).to_have_count(3)
        expect(page.locator("#block-legend [data-kind=owned]")).not_to_have_text("0")
        # The pictures show a course; the rules need none.
        page.wait_for_timeout(6_000 if FOLDER else 0)
        without_fault(page)
        seen(page, f"{name}-engine")
        page.locator("#engine").evaluate("(view) => { view.scrollTop = 1e6; }")
        seen(page, f"{name}-engine-end")
        done.set()
        for thread in threads:
            thread.join()
        # Nothing is wider or higher than the window, hidden captions included: only the view itself scrolls.
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")


def test_keyboard(page):
    """From the top of the page to an answer and back, without a pointer; the theme is kept."""
    skip = page.get_by_role("link", name="Skip to the content")
    assert page.evaluate("document.querySelector('a, button, input').textContent") == skip.inner_text()
    skip.focus()
    names = []
    for _ in range(12):
        page.keyboard.press("Tab")
        names.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
    assert names[:11] == [
        *(
            "chat-link",
            "engine-link",
            "model",
            "theme",
            "new",
            "search",
            "export-all",
            "import",
            "settings-button",
            "messages",
        ),
        "Explain how a paged KV cache works, in five sentences.",
    ]
    ground = page.locator("html").evaluate("(html) => getComputedStyle(html).backgroundColor")
    page.locator("#theme").focus()
    page.keyboard.press("Enter")
    expect(page.locator("html")).to_have_css("background-color", ground)
    page.keyboard.press("Enter")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(page.locator("html")).not_to_have_css("background-color", ground)
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()


def test_answer_is_read_out(page):
    """A screen reader gets sentences as they come, and the end."""
    set_sampling(page, temperature=0, max_tokens=250)
    ask(page, LONG)
    answered(page)
    said = page.locator("#announcer p").all_inner_texts()
    assert said[0] == "Answering"
    assert said[-1] == "The answer is complete"
    shown = page.get_by_role("article", name="Answer").locator(".markdown").last.inner_text()
    assert " ".join(said[1:-1]).split() == shown.split()
    assert len(said) > 3
