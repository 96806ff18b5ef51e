"""Windows of a corpus while they are collected, and notes for a reader of the guarantee."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from raydp.analysis.statistics.results import given
from raydp.tasks.task import Secret
from raydp.tasks.text.windows import Span, TokenizedText, WindowKind, with_start


@dataclass(frozen=True, kw_only=True)
class OwnedText:
    """A text and its user. The user is the text itself if users are not given."""

    tokens: TokenizedText
    user: str


@dataclass(kw_only=True)
class Cut:
    """Windows while they are collected: tokens, text and user of each, and counts.

    The counts are windows per text, and windows that were left out.
    """

    token_ids: list[Sequence[int]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    users: list[str] = field(default_factory=list)
    per_text: list[int] = field(default_factory=list)
    too_short: int = 0
    above_limit: list[str] = field(default_factory=list)

    def add(self, text: OwnedText, windows: Sequence[Span], start: tuple[int, ...]) -> None:
        """Append the windows of one text, each after the start tokens."""
        ids = text.tokens.token_ids
        self.token_ids += [with_start(ids[begin:end], start) for begin, end in windows]
        self.texts += [text.tokens.slice(w) for w in windows]
        self.users += [text.user] * len(windows)
        self.per_text.append(len(windows))


def privacy_unit(window: WindowKind, max_length: int, noun: str, max_windows: int | None) -> str:
    """Return one example in words."""
    if window == "lines":
        limit = "" if max_windows is None else f", at most {max_windows} per {noun}"
        return f"window of at most {max_length} tokens, packed from whole lines{limit}"
    return f"{noun} ({'first' if window == 'head' else 'last'} {max_length} tokens)"


def describe(
    examples: Cut,
    heldout: Cut,
    noun: str,
    window: WindowKind,
    max_windows: int | None,
    secrets: Sequence[Secret],
) -> dict[str, int | str | list[str]]:
    """Return notes on the examples that a reader of the guarantee needs."""
    # Exact copies of one window among the units weaken what epsilon says of a passage.
    copies = Counter(map(tuple, examples.token_ids))
    caveats = [
        f"Only exact duplicates of a whole {noun} were removed: quoted or forwarded copies of a "
        "passage remain in others, and epsilon covers one unit at a time.",
        "n, the split sizes, the counts and the choice of secrets are computed on the private "
        "data; epsilon does not cover them.",
    ]
    # Windows that respect secrets make the cut depend on the list of secrets: say so.
    if window == "lines":
        caveats.append(
            "Curation: a window does not cut a listed secret that fits into it"
            + (
                ""
                if max_windows is None
                else f", and windows with a secret are kept before others of a {noun}"
            )
            + "; where windows begin depends on the list of secrets."
        )
    # These counts are shown in the plan; none of them shows a text.
    return {
        "num_texts": len(examples.per_text),
        "num_heldout_texts": len(heldout.per_text),
        "num_heldout_examples": len(heldout.token_ids),
        "windows_per_text_max": max(examples.per_text),
        "windows_below_two_tokens_removed": examples.too_short,
        **given(windows_above_user_limit_removed=len(examples.above_limit) or None),
        "repeated_examples": len(examples.token_ids) - len(copies),
        "copies_of_one_example_max": max(copies.values()),
        "caveats": [*caveats, *shared_prompts(secrets)],
    }


def shared_prompts(secrets: Sequence[Secret]) -> list[str]:
    """Return a caveat if secrets share a prompt. It tells how many prompts, never their text."""
    prompts = Counter(s.prompt for s in secrets if s.kind == "verbatim")
    shared = sum(count > 1 for count in prompts.values())
    if not shared:
        return []
    noun = "prompt belongs" if shared == 1 else "prompts belong"
    return [
        f"Secrets: {shared} {noun} to several secrets, and a model continues a prompt verbatim "
        "with at most one of them, so give each secret a prompt of its own."
    ]


def describe_secrets(kept: Sequence[Secret], controls: Sequence[Secret]) -> dict[str, int]:
    """Return counts of the secrets; never their text."""
    return {
        "num_secrets": len(kept),
        "examples_with_one_secret_max": max((s.count for s in kept), default=0),
        "num_controls": len(controls),
    }
