"""Access to the APIs of tests that are not about authorization."""

from __future__ import annotations

from typing import Final

from isthmus.node.http.application import AccessControl

EVERYBODY: Final = AccessControl(guard=None, audit=None)
"""Every request is allowed, and no act is recorded."""
