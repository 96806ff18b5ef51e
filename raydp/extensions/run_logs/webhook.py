"""One request when a sweep ends, so that somebody far away hears of it."""

from __future__ import annotations

import json
import logging
import os
import urllib.request
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raydp.sweep.ending.result import SweepResult
    from raydp.sweep.store.disclosure import Disclosure

LOGGER = logging.getLogger(__name__)
_SECONDS = 10.0


def address_of(webhook: str) -> str:
    """Return the address of a webhook: its own, or the one in the variable `$NAME`.

    Raises:
        ValueError: the variable is not set, or holds no address.
    """
    name = webhook.removeprefix("$")
    address = os.environ.get(name, "") if webhook.startswith("$") else webhook
    # The address itself is a secret of many services, so it is not in the message.
    if not address.startswith(("https://", "http://")):
        raise ValueError(
            f"tracking.webhook must be of a variable with an https address, got ${name} without "
            f"one. Set {name} where `raydp sweep` runs, or leave the webhook out."
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
    try:
        request = urllib.request.Request(
            address_of(webhook),
            data=json.dumps(document).encode(),
            headers={"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=_SECONDS).close()
    except (OSError, ValueError) as error:
        LOGGER.warning("the webhook did not take the end of the sweep: %s", type(error).__name__)
