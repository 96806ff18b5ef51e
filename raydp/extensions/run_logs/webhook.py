"""One request when a sweep ends, so that somebody far away hears of it."""

from __future__ import annotations

import http.client
import json
import logging
import os
import re
import urllib.request
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raydp.sweep.ending.result import SweepResult
    from raydp.sweep.store.disclosure import Disclosure

LOGGER = logging.getLogger(__name__)
_SECONDS = 10.0
_ADDRESS = re.compile(
    r"https?://(?:\[[0-9A-Fa-f:.]+\]|[^\s\x00-\x20\x7f@:/?#\[\]]+)(?::([0-9]{1,5}))?(?:[/?#][!-~]*)?"
)
"""An address that a request can be sent to, and its port. Behind the host all is ASCII."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses to go elsewhere, where the request would come without its document."""

    def redirect_request(self, *args: object) -> None:
        """Return no other request, so that the answer is an error."""


def address_of(webhook: str) -> str:
    """Return the address of a webhook: its own, or the one in the variable `$NAME`.

    Raises:
        ValueError: the variable is not set, or there is no address that can be asked.
    """
    address = os.environ.get(webhook[1:], "") if webhook.startswith("$") else webhook
    match = _ADDRESS.fullmatch(address)
    # The address itself is a secret of many services, so it is not in the message.
    if match is None or not 0 < int(match[1] or 1) < 2**16:
        raise ValueError(
            "tracking.webhook must be an https address without white space and with a port up to "
            f"65535, or a variable with one, got {webhook if webhook[:1] == '$' else 'another'}. "
            "Set it where `raydp sweep` runs, or leave the webhook out."
        )
    return address


def announce(webhook: str, sweep: str, disclosure: Disclosure, result: SweepResult | None) -> None:
    """Post how a sweep has ended, as JSON. A failure is logged and changes nothing.

    The document holds the sweep's name, its state, the numbers of its runs and the selected
    configuration, and nothing of the data. `text` is what chat services show.

    Args:
        webhook: `tracking.webhook`.
        sweep: the sweep's name.
        disclosure: whether the runs may be counted outside the folder.
        result: the result; None if an error ended the sweep.
    """
    state = "failed" if result is None else "interrupted" if result.interrupted else "finished"
    counts = {} if result is None or not disclosure.shows_runs else result.counts.numbers
    selected = None if result is None else result.selected
    told = [f"raydp: the sweep {sweep} has {'been ' * (state == 'interrupted')}{state}"]
    told += [", ".join(f"{number} {name}" for name, number in counts.items())] if counts else []
    told += [] if selected is None else [f"selected {selected.configuration}"]
    document = {
        "text": "; ".join(told),
        "sweep": sweep,
        "state": state,
        **counts,
        "selected": None if selected is None else selected.configuration.to_json(),
    }
    data = json.dumps(document).encode()
    outcome: list[str | None] = [f"no answer within {_SECONDS:g} s"]
    # A server may send a byte now and then for ever, so the time of the whole is limited.
    thread = Thread(target=lambda: outcome.append(_post(webhook, data)), daemon=True)
    thread.start()
    thread.join(_SECONDS)
    if outcome[-1] is not None:
        LOGGER.warning("the webhook did not take the end of the sweep: %s", outcome[-1])


def _post(webhook: str, data: bytes) -> str | None:
    """Post a document. Return why it failed, without the address; None if it was taken."""
    headers = {"Content-Type": "application/json"}
    try:
        request = urllib.request.Request(address_of(webhook), data, headers)
        urllib.request.build_opener(_NoRedirect).open(request, timeout=_SECONDS).close()
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"{type(error).__name__} {getattr(error, 'code', '')}".rstrip()
    return None
