"""`isthmus dashboard`: the address of a node's dashboard, with a one-time login where tokens are needed."""

from __future__ import annotations

import click

from isthmus.config.text import quantity
from isthmus.node.cli.admin_command import AdminCommand, admin_query
from isthmus.node.cli.output import cell


@click.command("dashboard")
@admin_query
def dashboard_command(query: AdminCommand) -> None:
    """Print the address of a node's dashboard, for a browser.

    Where the node has tokens, the address logs one browser in, once and within minutes, with the role of the token that
    this command uses. Keep it secret.
    """
    session = query.get("/dashboard/session")
    link = query.post("/dashboard/links") if session.get("login") else {"path": "/", "expires_s": None}
    url, expires_s = f"{query.admin.url}{cell(link.get('path'))}", link.get("expires_s")
    if query.echo_json({"url": url, "expires_s": expires_s}):
        return
    query.note(url)
    if isinstance(expires_s, int):
        query.note(f"It logs one browser in, within the next {quantity(expires_s // 60, 'minute')}.")
