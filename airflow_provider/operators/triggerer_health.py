"""Whether a triggerer is there to run what is about to be deferred."""

from __future__ import annotations

import json
import logging
from urllib.error import URLError
from urllib.parse import urljoin
from urllib.request import urlopen

from airflow.sdk import conf

log = logging.getLogger(__name__)

_SECONDS = 2.0


def why_no_triggerer() -> str | None:
    """Return what is wrong with the triggerer, None when one is healthy or nothing can be said.

    Without a triggerer a deferred task waits for ever, and nothing in Airflow says why.
    """
    base = conf.get("api", "base_url", fallback="") or conf.get(
        "core", "execution_api_server_url", fallback=""
    )
    if not base.startswith(("http://", "https://")):
        return None
    url = urljoin(base.removesuffix("/").removesuffix("/execution") + "/", "api/v2/monitor/health")
    try:
        with urlopen(url, timeout=_SECONDS) as response:  # noqa: S310 - the scheme was checked
            triggerer = json.load(response).get("triggerer") or {}
    except (URLError, OSError, ValueError) as error:
        log.debug("cannot ask %s for the triggerer's health: %s", url, error)
        return None
    if triggerer.get("status") == "healthy":
        return None
    heard = triggerer.get("latest_triggerer_heartbeat")
    return f"no triggerer is running (last heard: {heard})" if heard else "no triggerer has ever run"
