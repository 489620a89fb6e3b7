"""What the tests of pages share: a browser that reaches no network, and pages that are watched."""

import shutil
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def browser():
    """The system's Chromium, headless; without one, that of Playwright."""
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), headless=True, args=QUIET
        )
        yield found
        found.close()


@pytest.fixture
def visit(browser):
    """Open a file: the page, and what it said on its console and asked of any network."""
    contexts = []

    def open_file(path, width=1280, scheme="light", **more):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, **more
        )
        contexts.append(context)
        page, said, asked = context.new_page(), [], []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))

        def refuse(route):
            asked.append(route.request.url)
            route.abort()

        context.route(lambda url: url != path.as_uri(), refuse)
        page.goto(path.as_uri())
        return page, said, asked

    yield open_file
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def axe():
    """The source of axe-core: `npm install` in this folder."""
    return AXE.read_text(encoding="utf-8")
