"""Check whether fine-tuning data or secrets occur in given public text.

Source: Hu et al. 2025, App. B.5.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from raydp.tasks.row_files import existing_file, read_json_rows, read_rows, string_of
from raydp.tasks.secret import verbatim_texts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ahocorasick_rs import AhoCorasick

    from raydp.tasks.task import Secret

PROBE = 48
"""Number of characters from a sample's middle to look for.

At each match, the whole sample is compared.
"""
BLOCK = 1 << 22
"""Number of characters of plain text that are read at a time."""


@dataclass(frozen=True, kw_only=True)
class Needles:
    """The strings to look for. Every run of white space is replaced by a single space.

    Attributes:
        samples: whole texts of the data.
        secrets: name -> string.
        keywords: words, compared without case.
    """

    samples: Sequence[str]
    secrets: Mapping[str, str] = field(default_factory=dict)
    keywords: Sequence[str] = ()

    @classmethod
    def of(
        cls, texts: Sequence[str], secrets: Sequence[Secret], keywords: Sequence[str]
    ) -> Needles:
        """Return the needles of texts and secrets as they are written. Blank texts are left out."""
        samples = dict.fromkeys(s for text in texts if (s := squeeze(text)))
        named = {
            secret.name: squeeze(text)
            for secret, text in zip(secrets, verbatim_texts(secrets), strict=True)
        }
        words = tuple(squeeze(keyword).casefold() for keyword in keywords)
        if "" in words:
            raise ValueError("--keyword must be a word, got blanks. Leave it out.")
        return cls(samples=tuple(samples), secrets=named, keywords=words)


def squeeze(text: str) -> str:
    """Replace every run of white space by a single space, and strip the ends."""
    return " ".join(text.split())


class FileMatches(TypedDict):
    """Counts and names of what one file holds."""

    file: str
    documents: int
    characters: int
    samples_found: int
    secrets_found: list[str]
    keywords: dict[str, int]


@dataclass
class Matches:
    """Matches in a file: documents and characters read, samples and secrets, keyword counts."""

    documents: int = 0
    characters: int = 0
    samples: set[int] = field(default_factory=set)
    secrets: set[str] = field(default_factory=set)
    keywords: dict[str, int] = field(default_factory=dict)

    def row(self, file: str) -> FileMatches:
        """Return counts and names, for printing."""
        return {
            "file": file,
            "documents": self.documents,
            "characters": self.characters,
            "samples_found": len(self.samples),
            "secrets_found": sorted(self.secrets),
            "keywords": self.keywords,
        }


class Searcher:
    """Search for all needles in one pass, linear in the text, with two Aho-Corasick automata."""

    def __init__(self, needles: Needles) -> None:
        # An automaton of short probes instead of whole samples, which would take too much memory.
        self._needles = needles
        # Probe -> (sample, position of the probe in it).
        self._by_probe: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for i, sample in enumerate(needles.samples):
            begin = max((len(sample) - PROBE) // 2, 0)
            self._by_probe[sample[begin : begin + PROBE]].append((i, begin))
        self._names: dict[str, list[str]] = defaultdict(list)
        for name, text in needles.secrets.items():
            self._names[text].append(name)
        self._strings = list({**self._by_probe, **self._names})
        self._exact = _automaton(self._strings)
        self._words = _automaton(list(needles.keywords)) if needles.keywords else None

    @property
    def reach(self) -> int:
        """Return the number of characters of the longest needle."""
        return max(
            map(
                len,
                [*self._needles.samples, *self._needles.secrets.values(), *self._needles.keywords],
            )
        )

    def search(self, text: str, matches: Matches, *, seen: int = 0) -> None:
        """Add the matches in a text.

        Args:
            text: text with single spaces.
            matches: the matches of the text's file, which are updated.
            seen: number of characters at the beginning that were searched before. Keywords that end
                in them are not counted again.
        """
        # A probe is only a candidate: its whole sample must be there.
        for index, begin, _ in self._exact.find_matches_as_indexes(text, overlapping=True):
            string = self._strings[index]
            matches.secrets.update(self._names.get(string, ()))
            for sample, offset in self._by_probe.get(string, ()):
                if sample not in matches.samples and begin >= offset:
                    whole = self._needles.samples[sample]
                    if text.startswith(whole, begin - offset):
                        matches.samples.add(sample)
        if self._words is not None:
            for index, _, end in self._words.find_matches_as_indexes(
                text.casefold(), overlapping=True
            ):
                if end > seen:
                    matches.keywords[self._needles.keywords[index]] += 1


def find_in_corpus(
    needles: Needles, files: Sequence[Path], *, progress: Callable[[str], None] = lambda step: None
) -> list[FileMatches]:
    """Look for data in public text.

    A sample is found if the whole of it occurs in a document, ignoring differences in white space.
    A document is a row of a JSON Lines or CSV file (all its strings), or a whole plain text. Memory
    holds the needles and one document, or for a plain text 4 M characters and as many as the
    longest needle has.

    Args:
        needles: the strings to look for.
        files: `.jsonl`, `.json`, `.csv`, or `.txt`, each also with `.gz`.
        progress: called with the name of the current step.

    Returns:
        Per file: documents, characters, number of samples and names of secrets that occur, and
        keyword counts.

    Raises:
        ValueError: there are no needles, or a file is missing, of another kind or without text.

    Source: Hu et al. 2025, App. B.5.
    """
    if not needles.samples and not needles.secrets and not needles.keywords:
        raise ValueError("DATA must hold texts to look for, got none. Check the file.")
    searcher = Searcher(needles)
    rows = []
    for path in files:
        # Counted from zero in each file, so that a report can name the file.
        matches = Matches(keywords=dict.fromkeys(needles.keywords, 0))
        existing_file(path, "--corpus")
        for text, seen in _documents(path, searcher.reach):
            matches.documents += not seen
            matches.characters += len(text) - seen
            searcher.search(text, matches, seen=seen)
            if matches.documents % 1000 == 0 or seen:
                progress(
                    f"{path.name}: {matches.documents} documents, {matches.characters / 1e6:.0f} M "
                    "characters"
                )
        if not matches.characters:
            raise ValueError(
                f"--corpus must hold text, got none in {str(path)!r}. Give another file, or leave "
                "it out."
            )
        rows.append(matches.row(path.name))
    return rows


def _documents(path: Path, reach: int) -> Iterator[tuple[str, int]]:
    """Yield documents with single spaces, and how many first characters repeat the last block.

    A plain text is yielded in blocks, each of which begins with the end of the previous one.
    """
    if path.name.removesuffix(".gz").endswith(".txt"):
        yield from _blocks(path, reach)
        return
    rows = read_json_rows(path, "--corpus") if ".json" in path.name else read_rows(path, "--corpus")
    for _, row in rows:
        yield squeeze("\n".join(value for value in row.values() if isinstance(value, str))), 0


def _blocks(path: Path, reach: int) -> Iterator[tuple[str, int]]:
    lines: list[str] = []
    size, before = 0, ""
    for line, row in read_rows(path, "--corpus"):
        text = string_of(row, "text", "--corpus", f"{path.name}, line {line}")
        lines.append(text)
        size += len(text) + 1
        # Blocks overlap by the longest needle, so that none is cut.
        if size >= BLOCK:
            block = f"{before} {squeeze(' '.join(lines))}".strip()
            yield block, len(before)
            before, lines, size = block[-reach:], [], 0
    if lines or not before:
        yield f"{before} {squeeze(' '.join(lines))}".strip(), len(before)


def _automaton(strings: Sequence[str]) -> AhoCorasick:
    try:
        from ahocorasick_rs import AhoCorasick
    except ModuleNotFoundError as error:
        raise ValueError(
            "`raydp data absent` must have the package ahocorasick-rs, got none. Run `pip install "
            "'.[secrets]'` in the repository."
        ) from error
    return AhoCorasick(strings)
