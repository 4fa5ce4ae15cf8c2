"""Where a provision's page is in the Temporal UI."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from temporalio.client import Client

UI_VARIABLE = "HATCHWAY_UI_URL"
"""The address of the Temporal UI: the server does not know it. `hatchway dev` sets it."""
DEV_SERVER, DEV_UI = "7233", "8233"
"""The dev server's own ports; its UI is on the second unless told otherwise."""


def workflow_url(temporal: Client, workflow_id: str, run_id: str) -> str | None:
    """The page of one run, or None where nobody said where the UI is."""
    base = ui_base(temporal.service_client.config.target_host)
    return page_url(base, temporal.namespace, workflow_id, run_id) if base else None


def page_url(base: str, namespace: str, workflow_id: str, run_id: str) -> str:
    """`workflow_id` has slashes, which are part of the name and not of the path."""
    name = quote(workflow_id, safe="")
    return f"{base.rstrip('/')}/namespaces/{quote(namespace, safe='')}/workflows/{name}/{run_id}/history"


def ui_base(address: str) -> str | None:
    """The UI that belongs to a frontend's address, as far as that can be known."""
    if said := os.environ.get(UI_VARIABLE):
        return said
    from hatchway.namespace import is_cloud

    host, _, port = address.rpartition(":")
    if is_cloud(address):
        return "https://cloud.temporal.io"
    if host in ("localhost", "127.0.0.1") and port == DEV_SERVER:
        return f"http://{host}:{DEV_UI}"
    return None
