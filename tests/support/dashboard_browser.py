"""The dashboard in a headless Chromium: every page is watched for errors of scripts and for requests to other places.

    browser      fixture, one a module: Chromium, which can reach this machine alone
    open_page    fixture: opens the dashboard of a node; at the end of the test each page must be free of faults
    BrowserPage  one tab: `goto`, `act`, `rendered`, `violations`; `page` is Playwright's own

A test whose claim is an error (a node that is killed, a change that is refused) names it with `allow`.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Error,
    Locator,
    Page,
    Request,
    TimeoutError,
    expect,
    sync_playwright,
)

from isthmus.node.dashboard.files import STATIC
from tests.support.machine_addresses import addresses_stay

Theme = Literal["light", "dark"]

PAGES: Final = sorted(
    found[1]
    for path in (STATIC / "pages").glob("*.js")
    if (found := re.search(r'export const page = \{\s*id: "([a-z-]+)"', path.read_text()))
)
"""The ids of all pages: tests of every page include new ones."""

WIDTHS: Final = (360, 768, 1280)
"""A telephone, a tablet, a laptop."""

PATIENCE_MS: Final = 30_000
"""How long a page may take to show the expected state: pages reload every 5 s, and the machine may be busy."""

ARGUMENTS: Final = [
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # no other host is reachable, whatever a page requests
    "--disable-dev-shm-usage",
    *(["--no-sandbox"] if os.geteuid() == 0 else []),  # Chromium's sandbox does not run as root
]

FITS: Final = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"

FRAMES: Final = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""Resolves after two frames: observers of sizes run in the first one."""

FRAMES_MS: Final = 2_000
"""How long a page may take to follow a new width."""

AXE_OPTIONS: Final[dict[str, Any]] = {"resultTypes": ["violations"]}
GRAVE: Final = ("serious", "critical")

expect.set_options(timeout=PATIENCE_MS)


class BrowserPage:
    """A tab that shows the dashboard of one node, in a browser profile of its own."""

    def __init__(self, browser: Browser, admin: str, *, width: int = 1280, theme: Theme = "light", **more: Any) -> None:
        """`admin`: the node's admin URL. `more`: options of Playwright's `Browser.new_context`."""
        self.admin = admin
        self._context = browser.new_context(
            viewport={"width": width, "height": 800},
            color_scheme=theme,
            reduced_motion="reduce",
            timezone_id="UTC",
            **more,
        )
        self._context.set_default_timeout(PATIENCE_MS)
        self._allowed: list[re.Pattern[str]] = []
        self._faults: list[str] = []
        self.requests: list[str] = []
        """Methods and URLs of all that was requested."""
        self.page: Page = self._context.new_page()
        self._context.on("console", self._said)
        self._context.on("weberror", lambda error: self._fault(f"error of a script: {error.error}"))
        self._context.on("request", self._requested)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._fault(f"console, {message.type}: {message.text} ({message.location.get('url', '')})")

    def _requested(self, request: Request) -> None:
        self.requests.append(f"{request.method} {request.url}")
        url = urlsplit(request.url)
        if url.scheme != "data" and f"{url.scheme}://{url.netloc}" != self.admin:
            self._fault(f"request to another place: {request.url}")

    def _fault(self, text: str) -> None:
        if not any(each.search(text) for each in self._allowed):
            self._faults.append(text)

    def allow(self, pattern: str) -> None:
        """Faults of this pattern are part of the test, also those before."""
        self._allowed.append(re.compile(pattern))
        self._faults = [each for each in self._faults if not re.search(pattern, each)]

    def close(self) -> None:
        """Close the tab. Fails when something went wrong in it that was not allowed."""
        self._context.close()
        assert not self._faults, "\n".join(self._faults)

    # -- pages --------------------------------------------------------------------------------------------

    def goto(self, where: str = "overview") -> None:
        """Load a page by its id, with a query if it has one, and wait until it is drawn."""
        loaded = self.page.url.startswith(self.admin)
        self.page.goto(f"{self.admin}/#/{where}")
        if loaded:
            self.page.reload()  # a change of the fragment alone loads nothing
        self.rendered()

    def rendered(self) -> None:
        """Wait until nothing of the page is loading."""
        expect(self.page.locator("#main h1")).to_be_visible()
        expect(self.page.locator("#main .spinner")).to_have_count(0)

    def region(self, name: str) -> Locator:
        """A part of the page by its name."""
        return self.page.get_by_role("region", name=name, exact=True)

    def fits(self) -> bool:
        """Whether the page needs no horizontal scrolling."""
        found: bool = self.page.evaluate(FITS)
        return found

    def comes_to_fit(self) -> bool:
        """Like `fits`, once charts and pictures have followed a new width, which they do in a later frame."""
        self.page.evaluate(FRAMES)
        try:
            self.page.wait_for_function(FITS, timeout=FRAMES_MS)
        except TimeoutError:
            return False
        return True

    def resize(self, width: int) -> None:
        """Change the width of the window."""
        self.page.set_viewport_size({"width": width, "height": 800})

    def choose(self, name: str, value: str) -> None:
        """Choose a value of a list by the list's name."""
        self.page.get_by_role("combobox", name=name, exact=True).select_option(value)

    def theme(self, theme: Theme) -> None:
        """Change the theme, as a reader does."""
        self.choose("Theme", theme)

    def violations(self) -> list[str]:
        """Violations found by axe-core that affect users of screen readers or keyboards, or with low vision: serious
        and critical."""
        found = Axe().run(self.page, options=AXE_OPTIONS).response["violations"]
        return [
            f"{each['impact']}: {each['id']}: {node['target']}: {node['failureSummary']}"
            for each in found
            if each["impact"] in GRAVE
            for node in each["nodes"]
        ]

    # -- acts ---------------------------------------------------------------------------------------------

    @property
    def dialog(self) -> Locator:
        """The dialog that is open."""
        return self.page.get_by_role("dialog")

    def ask(self, button: Locator) -> str:
        """Press the button of an act; returns the text of its dialog once that shows the effect."""
        button.click()
        expect(self.dialog.locator(".spinner")).to_have_count(0)
        return self.dialog.inner_text()

    def fill_in(self, button: Locator, values: Mapping[str, str]) -> str:
        """Press the button of an act that has inputs, fill them in by the beginnings of their labels, and continue.

        Returns the text of the confirmation, or of the same dialog with the reason why the values are invalid.
        """
        button.click()
        for label, value in values.items():
            field = self.dialog.get_by_label(re.compile(f"^{re.escape(label)}"))
            if field.evaluate("(field) => field.tagName") == "SELECT":
                field.select_option(value)
            else:
                field.fill(value)
        self.dialog.get_by_role("button", name=re.compile("^(Next|Ask)$")).click()
        expect(self.dialog.locator(".spinner")).to_have_count(0)
        return self.dialog.inner_text()

    def confirm(self, verb: str, *, by: str = "", reason: str = "") -> str:
        """Confirm the dialog by the button of this word; the text with the result. The dialog stays open.

        A dialog that shows its progress may take `PATIENCE_MS` for each step: a busy machine takes longer for all."""
        if by:
            self.dialog.get_by_label("Your name").fill(by)
        if reason:
            self.dialog.get_by_label("Reason").fill(reason)
        self.dialog.get_by_role("button", name=verb, exact=True).click()
        close = self.dialog.get_by_role("button", name="Close", exact=True)
        while not close.is_visible():
            shown = self.dialog.inner_text()
            try:
                expect(close).to_be_visible()
            except AssertionError:
                if self.dialog.inner_text() == shown:
                    raise
        return self.dialog.inner_text()

    def close_dialog(self) -> None:
        """Close the dialog by its button."""
        self.dialog.get_by_role("button", name=re.compile("^(Close|Cancel)$")).click()
        expect(self.page.get_by_role("dialog")).to_have_count(0)

    def act(self, button: Locator, verb: str, *, by: str = "", reason: str = "") -> str:
        """An act from its button to its success; the text of the result."""
        self.ask(button)
        result = self.confirm(verb, by=by, reason=reason)
        assert "Done." in result, result
        self.close_dialog()
        return result

    def tab_to(self, wanted: Callable[[], object], most: int = 200) -> int:
        """Press Tab until the focused element satisfies the condition; returns how many presses it took."""
        for pressed in range(1, most + 1):
            self.page.keyboard.press("Tab")
            if wanted():
                return pressed
        raise AssertionError(f"not reached by {most} presses of Tab")

    def focused(self) -> str:
        """The name of the focused element."""
        found: str = self.page.evaluate(
            "document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"
        )
        return found.strip()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium as the system has it."""
    chromium = shutil.which("chromium")
    assert chromium is not None
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        try:
            yield running
        finally:
            running.close()


@pytest.fixture
def open_page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[..., BrowserPage]]:
    """Opens tabs: `open_page(admin, "cluster?type=default", width=360)`. With ISTHMUS_SCREENSHOTS, a folder, each tab
    saves a last screenshot there."""
    opened: list[BrowserPage] = []

    def open_(admin: str, where: str | None = "overview", **more: Any) -> BrowserPage:
        tab = BrowserPage(browser, admin, **more)
        opened.append(tab)
        if where is not None:
            tab.goto(where)
        return tab

    with addresses_stay():
        yield open_
        folder = os.environ.get("ISTHMUS_SCREENSHOTS")
        for number, tab in enumerate(opened if folder else []):
            name = re.sub(r"\W+", "-", f"{request.node.name}-{number}")
            try:
                (Path(folder or "") / f"{name}.png").write_bytes(tab.page.screenshot(full_page=True))
            except Error as error:  # of a tab whose node has stopped
                print(f"no screenshot: {error}")
        for tab in opened:
            tab.close()
