"""Phone numbers, e-mail addresses, street addresses, keys and account numbers in a text.

Phone numbers are recognised by phonenumbers (Google's libphonenumber), and keys by detect-secrets.
the extra `secrets` installs both. Street addresses are recognised by our own rule, for the United
States. presidio's recognisers of names and places are not used, because they need a spaCy model,
which is a separate download.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from detect_secrets.plugins.base import BasePlugin

Kind = Literal["phone", "email", "address", "key", "number"]
KINDS: tuple[Kind, ...] = ("phone", "email", "address", "key", "number")
MIN_PHONE_DIGITS = 7
GUESSING_PLUGINS = {"Base64HighEntropyString", "HexHighEntropyString", "IPPublicDetector"}
"""Plugins that mistake long words of ordinary text for keys: tens of thousands in 300 e-mails."""

_EMAIL = re.compile(r"[\w.+'-]*\w@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}")
_ADDRESS = re.compile(
    r"\b\d{1,5}[ ]+(?:[NSEW]\.?[ ]+)?(?:[A-Z][\w.']*[ ]+){1,4}"
    r"(?:Street|St|Avenue|Ave|Road|Rd|Boulevard|Blvd|Drive|Dr|Lane|Ln|Court|Ct|Place|Pl|Parkway|Pkwy|Highway|Hwy|Way)\b\.?"
    r"(?:,?[ ]*\n?[ ]*(?:(?:Suite|Ste|Floor|Fl|Apt|Unit|Room|Rm)\.?[ ]*#?|#)?[A-Z]{0,3}[ ]?\d[\w-]*\b)?"
    r"(?:,?[ ]*\n?[ ]*[A-Z][a-z]+(?:[ ][A-Z][a-z]+)*,?[ ]+(?:[A-Z]{2}|[A-Z][a-z]+)\.?[ ]+\d{5}(?:-\d{4})?\b)?"
    r"|\bP\.?[ ]?O\.?[ ]Box[ ]+\d+(?:,?[ ]*\n?[ ]*[A-Z][a-z]+(?:[ ][A-Z][a-z]+)*,?[ ]+[A-Z]{2}[ ]+\d{5}(?:-\d{4})?)?"
)
_NUMBER = re.compile(
    r"(?<![\w.,@/=:$€£-])(?:"
    r"[A-Z]{2}\d{2}(?:[ ]?[A-Z0-9]{4}){3,7}(?:[ ]?[A-Z0-9]{1,3})?"  # IBAN
    r"|\d{4}(?:[ ]\d{4}){2,4}(?:[ ]\d{1,3})?"  # card
    r"|(?:[A-Z]{1,5}-?)?\d{2,}(?:-\d{2,})+"  # groups
    r"|(?:[A-Z]{1,5}-?)?\d{6,}"
    r")(?![\w@/-]|[.,:]\d)"
)
_NO_NUMBER = re.compile(
    r"(?:19|20)\d\d-?(?:0[1-9]|1[0-2])-?(?:0[1-9]|[12]\d|3[01])"  # dates
    r"|\d{1,2}-\d{1,2}-(?:\d\d|\d{4})"
    r"|\d{5}-\d{4}"  # ZIP codes
    r"|(?:19|20)\d\d-(?:19|20)\d\d"  # years
)
MIN_NUMBER_DIGITS = 6
_MAYBE_KEY = re.compile(
    r"pass|pwd|secret|token|api|key|auth|cred|://[^\s/]+:[^\s/]+@|(?=\S*\d)[\w/+=.-]{20,}",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Found:
    """A detected value: its kind, and its characters begin:end in the text."""

    kind: Kind
    begin: int
    end: int


def find(text: str, *, region: str = "US", kinds: tuple[Kind, ...] = KINDS) -> list[Found]:
    """Return every detected value of a text, in order.

    Of two overlapping values, the earlier or longer one is kept.

    Args:
        text: any text.
        region: two letters of the country whose phone numbers are written without a country code.
        kinds: the kinds of values to look for.

    Raises:
        ValueError: phone numbers or keys are wanted, and their package is missing.
    """
    # Collect the values of each kind.
    values: list[Found] = []
    if "email" in kinds:
        values += [Found(kind="email", begin=m.start(), end=m.end()) for m in _EMAIL.finditer(text)]
    if "address" in kinds:
        values += [
            Found(kind="address", begin=m.start(), end=m.end()) for m in _ADDRESS.finditer(text)
        ]
    if "number" in kinds:
        numbers = [m for m in _NUMBER.finditer(text) if not _NO_NUMBER.fullmatch(m.group())]
        numbers = [m for m in numbers if sum(c.isdigit() for c in m.group()) >= MIN_NUMBER_DIGITS]
        values += [Found(kind="number", begin=m.start(), end=m.end()) for m in numbers]
    # Phone numbers and keys by line: both libraries expect one, and most lines are skipped cheaply.
    if "phone" in kinds or "key" in kinds:
        start = 0
        for line in text.split("\n"):
            if "phone" in kinds and sum(c.isdigit() for c in line) >= MIN_PHONE_DIGITS:
                values += _phones(line, start, region)
            if "key" in kinds and _MAYBE_KEY.search(line):
                values += _keys(line, start)
            start += len(line) + 1
    # Of overlapping values, keep the one that begins first, then the longer one.
    apart: list[Found] = []
    for one in sorted(values, key=lambda f: (f.begin, -f.end, f.kind == "number")):
        if not apart or one.begin >= apart[-1].end:
            apart.append(one)
    return apart


def check_region(region: str) -> None:
    """Refuse a region without phone numbers, where no phone number would be found.

    Raises:
        ValueError: the region is unknown, or the package is missing.
    """
    if region not in _library("phonenumbers").SUPPORTED_REGIONS:
        raise ValueError(
            f"--region must be two letters of a country, such as US or DE, got {region!r}. Correct "
            "it."
        )


def _phones(line: str, start: int, region: str) -> Iterator[Found]:
    matcher = _library("phonenumbers").PhoneNumberMatcher
    for match in matcher(line, region):
        yield Found(kind="phone", begin=start + match.start, end=start + match.end)


def _keys(line: str, start: int) -> Iterator[Found]:
    for plugin in _key_plugins():
        # The rules for YAML files apply, because e-mails leave passwords unquoted as YAML does.
        for secret in plugin.analyze_line(filename="line.yaml", line=line, line_number=1):
            value = secret.secret_value
            if value and (at := line.find(value)) >= 0:
                yield Found(kind="key", begin=start + at, end=start + at + len(value))


@cache
def _key_plugins() -> list[BasePlugin]:
    _library("detect_secrets")
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class

    classes: Mapping[str, type[BasePlugin]] = get_mapping_from_secret_type_to_class()
    return [cls() for cls in classes.values() if cls.__name__ not in GUESSING_PLUGINS]


@cache
def _library(name: str) -> ModuleType:
    """Import a package, or raise the error that tells how to install it."""
    from importlib import import_module

    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"phone numbers and keys must be detected with the package {name.replace('_', '-')}, "
            "got none. Run `pip install '.[secrets]'`, or leave phone and key out of --detect."
        ) from error
