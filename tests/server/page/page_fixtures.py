"""A server of the real model, Chromium, and the page of the one in the other."""

from pathlib import Path

import pytest
from page_browser import opened, serving, settled
from playwright.sync_api import sync_playwright

CHROMIUM = Path("/usr/bin/chromium")


@pytest.fixture(scope="session")
def server(smollm2_path):
    """A server of the real model, for the tests of all files."""
    with serving(smollm2_path, "--kv-cache-memory", str(256 << 20)) as client:
        yield client
        settled(client)


@pytest.fixture(scope="module")
def chromium():
    """The browser."""
    if not CHROMIUM.exists():
        pytest.skip("Chromium is not installed: make browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(chromium, server):
    """The page of the common server."""
    with opened(chromium, server.base_url) as page:
        yield page
    settled(server)
