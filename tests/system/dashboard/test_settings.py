"""Acts on the pages Options and Bucket types, in a browser: from the button to the effect on real clusters."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, expect

from tests.support.dashboard_browser import BrowserPage
from tests.system.fullsync.clusters import Clusters, eventually

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(180)]

OpenPage = Callable[..., BrowserPage]

NAME = "<b>Ada</b>"
HTML = "<img src=x onerror=alert(1)>&amp;"
"""Names that must never become HTML."""

LAG = "replication.max.time.lag.millis"


def option(pair: Clusters, name: str, bucket_type: str | None = None) -> dict[str, Any]:
    """An option as west's neighbour east-3 has it: a change at one node is in force at all."""
    rows = pair.admin("east-3", "/admin/options")["options"]
    found = [each for each in rows if (each["option"], each["bucket_type"]) == (name, bucket_type)]
    return dict(found[0]) if found else {}


def row_of(tab: BrowserPage, name: str, scope: str) -> Locator:
    """The row of an option."""
    rows = tab.region("Dynamic options").get_by_role("row")
    return rows.filter(has=tab.page.get_by_text(name, exact=True)).filter(has_text=f"for {scope}")


def button(within: Locator, name: str) -> Locator:
    """A button by its full name."""
    return within.get_by_role("button", name=name, exact=True)


@pytest.fixture
def options(pair: Clusters, open_page: OpenPage) -> BrowserPage:
    """The page Options of east-1."""
    return open_page(pair.nodes["east-1"]["admin"], "options")


@pytest.fixture
def types(pair: Clusters, open_page: OpenPage) -> BrowserPage:
    """The page Bucket types of east-1."""
    return open_page(pair.nodes["east-1"]["admin"], "bucket-types")


def test_an_option_is_set_and_unset(pair: Clusters, options: BrowserPage) -> None:
    """The dialog shows the future value; afterwards every node shows it in force, with who set it and why; after
    unsetting it the default is in force again."""
    row = row_of(options, LAG, "the cluster")
    text = options.fill_in(button(row, "Set …"), {"Value": "4s", "For": ""})
    assert f"Set {LAG} for the cluster?" in text
    assert "4,000 ms" in text
    assert option(pair, LAG)["set"] is None
    result = options.confirm("Set it", by=NAME, reason=HTML)
    assert "Done." in result
    options.close_dialog()
    assert option(pair, LAG)["effective"] == 4_000
    for words in ("4,000 ms", "set for the cluster", NAME, HTML):
        expect(row).to_contain_text(words)
    text = options.ask(button(row, "Unset …"))
    assert "3,000 ms" in text
    options.confirm("Unset it")
    options.close_dialog()
    assert option(pair, LAG)["set"] is None
    expect(button(row, "Unset …")).to_have_count(0)


def test_an_option_of_a_bucket_type_is_a_row_of_its_own(pair: Clusters, options: BrowserPage) -> None:
    """An option set for one bucket type is listed among the set options, beside the min-ISR of the nodes' files; the
    address keeps the choice."""
    options.fill_in(button(row_of(options, LAG, "the cluster"), "Set …"), {"Value": "5000", "For": "default"})
    options.confirm("Set it")
    options.close_dialog()
    options.page.get_by_label("only what somebody has set").check()
    row = row_of(options, LAG, "bucket type default")
    expect(row).to_contain_text("set for the bucket type")
    expect(options.region("Dynamic options").get_by_role("row")).to_have_count(3)  # one has the titles
    expect(row_of(options, "replication.min.isr", "the cluster")).to_contain_text("the file of node east-")
    assert "only=set" in options.page.url
    options.act(button(row, "Unset …"), "Unset it")
    expect(row).to_have_count(0)
    options.page.get_by_label("Find").fill(LAG)
    expect(options.region("Dynamic options")).to_contain_text("No option fits.")
    assert not option(pair, LAG, "default")


def test_a_wrong_value_is_refused_with_what_would_be_right(options: BrowserPage) -> None:
    """The node names the valid values before the dialog asks for confirmation."""
    options.allow("status of 400")
    row = row_of(options, LAG, "the cluster")
    for value, sentence in (("soon", 'write a number and a unit, such as "1s"'), ("50", "100ms to 1h")):
        options.fill_in(button(row, "Set …"), {"Value": value, "For": ""})
        expect(options.dialog.get_by_role("alert")).to_contain_text(sentence)
        assert button(options.dialog, "Set it").count() == 0
        options.close_dialog()


def test_what_another_operator_changed_meanwhile_is_not_overwritten(pair: Clusters, options: BrowserPage) -> None:
    """When another operator sets the option while the dialog is open, the change is refused with the new value and the
    operator's name; the page shows that value."""
    options.allow("status of 409")
    row = row_of(options, LAG, "the cluster")
    options.fill_in(button(row, "Set …"), {"Value": "4s", "For": ""})
    pair.admin("east-2", f"/admin/options/{LAG}/set", {"value": 6000, "by": "Bob"})
    result = options.confirm("Set it")
    assert "Done." not in result
    assert "by Bob" in result
    options.close_dialog()
    expect(row).to_contain_text("6,000 ms")
    assert option(pair, LAG)["effective"] == 6_000
    pair.admin("east-2", f"/admin/options/{LAG}/unset", {})


def test_a_bucket_type_is_created_and_gets_fewer_replicas(pair: Clusters, types: BrowserPage) -> None:
    """The dialog shows where the replicas will be; the number of replicas is an order that the page follows."""
    listed = types.page.get_by_role("region", name="Bucket types", exact=True).first
    wanted = {"Name": "notes", "Partitions": "2", "Replicas": "3"}
    text = types.fill_in(button(listed, "Create …"), wanted)
    assert "Create bucket type notes?" in text
    assert "Where the replicas will be" in text
    result = types.confirm("Create it", by=NAME)
    assert "all 2 partitions are online" in result
    types.close_dialog()
    row = listed.get_by_role("row").filter(has_text="notes")
    expect(row).to_contain_text("2 of 2")
    text = types.fill_in(button(row, "Replicas …"), {"Replicas": "2"})
    assert "2 partitions change" in text
    types.confirm("Order it")
    types.close_dialog()
    eventually(lambda: not pair.admin("east-1", "/admin/moves")["orders"], "the order has ended")
    (found,) = (
        each for each in pair.admin("east-1", "/admin/bucket-types")["bucket_types"] if each["bucket_type"] == "notes"
    )
    assert found["replication_factor"] == 2
    types.allow("status of 400")
    types.fill_in(button(listed, "Create …"), {**wanted, "Name": HTML})
    expect(types.dialog.get_by_role("alert")).to_be_visible()
    types.close_dialog()


def test_properties_of_a_bucket_are_set_and_unset(pair: Clusters, types: BrowserPage) -> None:
    """The properties of a bucket whose name is HTML are shown, changed and reset, and the bucket is listed among those
    with properties of their own."""
    look = types.page.get_by_role("form", name="Look at a bucket")
    look.get_by_label("Bucket", exact=True).fill(HTML)
    look.get_by_role("button", name="Show").click()
    shown = types.region("Properties")
    expect(shown.get_by_role("heading", level=2)).to_have_text(f"Properties of bucket default / {HTML}")
    path = f"/admin/buckets/default/{quote(HTML, safe='')}/properties"
    before = {each["property"]: each for each in pair.admin("east-3", path)["properties"]}
    name = next(name for name, each in before.items() if each["acts"] and isinstance(each["value"], bool))
    row = shown.get_by_role("row").filter(has=types.page.get_by_text(name, exact=True))
    text = types.fill_in(button(row, "Set …"), {"Value": str(not before[name]["value"]).lower()})
    assert f"Set {name} of default / {HTML}" in text
    types.confirm("Set it", by=NAME)
    types.close_dialog()
    after = {each["property"]: each for each in pair.admin("east-3", path)["properties"]}
    assert after[name]["value"] is not before[name]["value"]
    own = types.region("Buckets with properties of their own")
    expect(own).to_contain_text(HTML)
    expect(row).to_contain_text(NAME)
    types.act(button(row, "Unset …"), "Unset")
    expect(types.page.locator("#main")).to_contain_text("No bucket has properties of its own")
    assert re.search("bucket=", types.page.url)


def test_properties_of_a_bucket_type_are_unset_together(pair: Clusters, types: BrowserPage) -> None:
    """Two set properties are unset by one act; the dialog names both."""
    path = "/admin/bucket-types/default/properties"
    names = [
        each["property"]
        for each in pair.admin("east-1", path)["properties"]
        if each["acts"] and isinstance(each["value"], bool)
    ][:2]
    values = {each["property"]: each["value"] for each in pair.admin("east-1", path)["properties"]}
    pair.admin("east-1", f"{path}/set", {"props": {name: not values[name] for name in names}})
    types.page.reload()
    types.rendered()
    text = types.ask(button(types.region("Properties"), "Unset all …"))
    for name in names:
        assert name in text
    types.confirm("Unset")
    types.close_dialog()
    now = {each["property"]: each["value"] for each in pair.admin("east-3", path)["properties"]}
    assert {name: now[name] for name in names} == {name: values[name] for name in names}
