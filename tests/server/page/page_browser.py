"""The tests of the page: a server as users start it, and the page in Chromium."""

import re
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import server_process
from playwright.sync_api import expect

# The model answers this with hundreds of tokens.
LONG = "Tell a very long story about a blacksmith who repairs clocks."
# Milliseconds to wait for what must come: two cores may be busy with other tests.
PATIENCE = 120_000
expect.set_options(timeout=PATIENCE)
# Chromium writes a line for each answer that is an error, also for those that a test asks for.
REFUSED = re.compile(r"Failed to load resource: (the server responded with a status of|net::ERR_)")


@contextmanager
def serving(model, *options, headers=None):
    """A running server with a client of it. It has ended properly at the end, unless the test has ended it."""
    with (
        tempfile.TemporaryDirectory() as folder,
        server_process.serving(Path(folder), model, "--num-threads", 1, *options, headers=headers) as server,
    ):
        server.client.process = server.process
        yield server.client


def settled(client):
    """The engine's figures, once no request and no owned block is left."""
    deadline = time.monotonic() + 20
    while (stats := client.get("/v1/engine/stats").json())["num_running"] or stats["blocks_owned"]:
        assert time.monotonic() < deadline, stats
        time.sleep(0.01)
    assert client.get("/v1/engine/requests").json() == {"requests": []}
    return stats


@contextmanager
def opened(chromium, address, *, wait=True, **options):
    """The page in a window with nothing kept; it asks no other site and writes no error to the console."""
    context = chromium.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    faults = []
    origin = str(address).rstrip("/")
    page.on("request", lambda asked: asked.url.startswith((origin, "blob:")) or faults.append(asked.url))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on(
        "console",
        lambda said: said.type in ("error", "warning") and not REFUSED.match(said.text) and faults.append(said.text),
    )
    page.goto(origin + "/")
    if wait:
        page.wait_for_selector("body[data-ready]")
    yield page
    context.close()
    assert faults == []


def set_sampling(page, **values):
    """Fills in settings of the chat."""
    page.get_by_role("button", name="Settings").click()
    for name, value in values.items():
        page.locator(f"#settings-form [name={name}]").fill(str(value))
    page.get_by_role("button", name="Done").click()


def ask(page, text):
    """Sends a message by keyboard."""
    page.get_by_role("textbox", name="Message").fill(text)
    page.keyboard.press("Enter")


def answered(page):
    """Waits for the end of the answer."""
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()


def put_answer(page, text):
    """Replaces the last answer by editing it, as a user may."""
    answer = page.get_by_role("article", name="Answer").last
    answer.get_by_role("button", name="Edit message").click()
    answer.get_by_role("textbox", name="Edit message").fill(text)
    answer.get_by_role("button", name="Save").click()
