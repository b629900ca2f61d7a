"""Logins, roles and TLS of the dashboard, in a browser, on a node with tokens."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from playwright.sync_api import expect

from isthmus.node.http.authorization import TokenRole
from isthmus.node.local import dev_certificates
from isthmus.repl.security.tls import NodeName
from tests.support.dashboard_browser import PAGES, BrowserPage
from tests.support.threaded_node import running_node

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(180)]

OpenPage = Callable[..., BrowserPage]

SECURE: Final = """
[tls]
certificate = "{0}/n1.crt"
key = "{0}/n1.key"
authority = "{0}/ca.crt"
[tokens]
read = "{0}/read.token"
operate = "{0}/operate.token"
admin = "{0}/admin.token"
"""

REFUSED: Final = "status of 401"
"""Chromium's console message for an error response, such as 401 before a login."""


class SecureNode(NamedTuple):
    """A node with TLS and tokens, and the folder of both."""

    admin: str
    security: Path

    def token(self, role: TokenRole) -> str:
        """The token of a role."""
        return (self.security / f"{role.value}.token").read_text().strip()

    def link(self, role: TokenRole) -> str:
        """The address that `isthmus dashboard` prints."""
        command = [
            sys.executable, "-m", "isthmus.node.cli.main", "dashboard", "--admin", self.admin,
            "--ca", str(self.security / "ca.crt"), "--token-file", str(self.security / f"{role.value}.token"),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
        found = re.search(r"https://\S+", done.stdout)
        assert found, done.stdout
        return found[0]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    """One node, alone, with TLS and tokens of three roles."""
    folder = tmp_path_factory.mktemp("secure")
    dev_certificates.make_certificates(folder, (NodeName("east", "n1"),))
    dev_certificates.make_tokens(folder)
    with running_node(folder, SECURE.format(folder)) as running:
        yield SecureNode(f"https://127.0.0.1:{running.admin}", folder)


@pytest.fixture
def visitor(node: SecureNode, open_page: OpenPage) -> BrowserPage:
    """A browser that trusts the node's certificate, and has not logged in."""
    tab = open_page(node.admin, None, ignore_https_errors=True)
    tab.page.goto(node.admin)
    expect(tab.page.get_by_role("heading", name="Log in")).to_be_visible()
    return tab


def log_in(tab: BrowserPage, token: str) -> None:
    """Type a token."""
    tab.page.get_by_label("Token").fill(token)
    tab.page.get_by_role("button", name="Log in").click()


def test_a_token_logs_in_and_a_wrong_one_does_not(node: SecureNode, visitor: BrowserPage) -> None:
    """A wrong token is refused with a reason, and the field is cleared; the right one shows the page, and sets a cookie
    that scripts cannot read; a logout ends the session at the node."""
    visitor.allow(REFUSED)
    page = visitor.page
    assert visitor.violations() == []
    log_in(visitor, "wrong")
    expect(page.get_by_role("alert")).to_contain_text("this token is not known here")
    expect(page.get_by_label("Token")).to_have_value("")
    log_in(visitor, node.token(TokenRole.READ))
    visitor.rendered()
    expect(page.locator("#top")).to_contain_text("live")
    (cookie,) = visitor.page.context.cookies()
    assert (cookie["httpOnly"], cookie["secure"], cookie["sameSite"]) == (True, True, "Strict")
    assert page.evaluate("[document.cookie, Object.keys(sessionStorage).length]") == ["", 0]
    assert node.token(TokenRole.READ) not in page.evaluate("JSON.stringify(localStorage)")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    page.context.add_cookies([cookie])
    page.reload()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()


def test_a_viewer_sees_everything_and_can_do_nothing(node: SecureNode, visitor: BrowserPage) -> None:
    """With the role read the acts are shown disabled with the role that they need; the node refuses them, too."""
    visitor.allow("status of 403")
    log_in(visitor, node.token(TokenRole.READ))
    visitor.page.goto(f"{node.admin}/#/cluster")
    visitor.rendered()
    expect(visitor.region("Nodes")).to_contain_text("n1")
    for name in ("Balance now", "Spread evenly", "Drain"):
        button = visitor.page.get_by_role("button", name=name, exact=True)
        expect(button).to_be_disabled()
        expect(button).to_have_attribute("title", "this needs a token of the role operate")
    sent = """fetch("/admin/leaders/balance", {method: "POST", body: "{}"}).then((answer) => answer.status)"""
    assert visitor.page.evaluate(sent) == 403


@pytest.mark.parametrize("role", [TokenRole.READ, TokenRole.OPERATE])
def test_every_page_works_with_every_role(node: SecureNode, visitor: BrowserPage, role: TokenRole) -> None:
    """No page requests data that its viewer may not see: none shows an alert, and the node refuses no request (which
    would be an error on the console). Acts beyond the role are disabled and name the role that they need."""
    log_in(visitor, node.token(role))
    locked: set[str] = set()
    for page_id in PAGES:
        visitor.page.goto(f"{node.admin}/#/{page_id}")
        visitor.rendered()
        assert visitor.page.locator("#main [role=alert]").all_inner_texts() == [], page_id
        for button in visitor.page.locator("#main button[title^='this needs']").all():
            expect(button).to_be_disabled()
            locked.add(str(button.get_attribute("title")))
    above = {TokenRole.READ: ["operate", "admin"], TokenRole.OPERATE: ["admin"]}[role]
    assert locked == {f"this needs a token of the role {each}" for each in above}


def test_an_operator_may_act(node: SecureNode, visitor: BrowserPage) -> None:
    """With the role operate the same acts are enabled."""
    log_in(visitor, node.token(TokenRole.OPERATE))
    visitor.page.goto(f"{node.admin}/#/cluster")
    visitor.rendered()
    text = visitor.ask(visitor.page.get_by_role("button", name="Balance now"))
    assert "there is nothing to move" in text
    visitor.close_dialog()


def test_a_link_logs_in_once(node: SecureNode, visitor: BrowserPage, open_page: OpenPage) -> None:
    """The address that `isthmus dashboard` prints opens a session with its token's roles and disappears from the
    address bar and the history; a second browser is asked for a token, with the reason."""
    address = node.link(TokenRole.OPERATE)
    visitor.page.goto("about:blank")
    visitor.page.goto(address)
    visitor.rendered()
    expect(visitor.page.locator("#top")).to_contain_text("live")
    assert "login" not in visitor.page.url
    visitor.page.goto(f"{node.admin}/#/cluster")
    expect(visitor.page.get_by_role("button", name="Balance now")).to_be_enabled()
    other = open_page(node.admin, None, ignore_https_errors=True)
    other.allow(REFUSED)
    other.page.goto(address)
    expect(other.page.get_by_role("alert")).to_contain_text("this login link was used before or is too old")
    assert "login" not in other.page.url


def test_a_session_that_ended_asks_for_a_login(node: SecureNode, visitor: BrowserPage) -> None:
    """A page whose session ends shows the login with the reason, and none of its former contents; after the login it
    shows the same page again."""
    visitor.allow(REFUSED)
    log_in(visitor, node.token(TokenRole.READ))
    visitor.rendered()
    visitor.page.goto(f"{node.admin}/#/cluster")
    visitor.rendered()
    visitor.page.context.clear_cookies()
    expect(visitor.page.get_by_role("alert")).to_contain_text("This session is over.")
    expect(visitor.region("Nodes")).to_have_count(0)
    log_in(visitor, node.token(TokenRole.READ))
    expect(visitor.region("Nodes")).to_contain_text("n1")
