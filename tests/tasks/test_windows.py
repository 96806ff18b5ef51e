from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydp.tasks.text.windows import keep_windows, tokenize, windows_of

# Line ends, a word of the tokenizer, digits, and characters of two, three and four bytes.
PIECES = st.sampled_from(
    ["\n", "\n\n", " ", "\t", "the", " author", "x", "7", "ø", "中", "🙂", "\r\n", "-"]
)
TEXTS = st.lists(PIECES, min_size=1, max_size=80).map("".join)
LENGTHS = st.integers(8, 24)


def whole_in_a_window(text, windows, span):
    return any(begin <= span[0] and span[1] <= end for begin, end in windows)


@pytest.mark.parametrize("fixture", ["tokenizer", "trimming_tokenizer"])
@given(text=TEXTS, max_length=LENGTHS)
def test_lines_hold_every_token_and_character_in_order_once(request, fixture, text, max_length):
    (tokenized,) = tokenize(request.getfixturevalue(fixture), [text])
    windows = windows_of(tokenized, "lines", max_length)
    assert [i for begin, end in windows for i in range(begin, end)] == list(range(len(tokenized)))
    assert all(0 < end - begin <= max_length for begin, end in windows)
    assert "".join(tokenized.slice(w) for w in windows) == text


@given(text=TEXTS, max_length=LENGTHS)
def test_a_window_holds_the_tokens_of_its_characters(tokenizer, text, max_length):
    """Byte-level decoding is exact, so the tracked text must be the decoded one."""
    (tokenized,) = tokenize(tokenizer, [text])
    for begin, end in windows_of(tokenized, "lines", max_length):
        assert tokenizer.decode(tokenized.token_ids[begin:end]) == tokenized.slice((begin, end))


@given(text=TEXTS, max_length=LENGTHS)
def test_a_line_is_cut_only_if_it_is_too_long_and_lines_are_packed_greedily(
    tokenizer, text, max_length
):
    (tokenized,) = tokenize(tokenizer, [text])
    after_line_end = (i for i in range(1, len(tokenized)) if text[tokenized.bounds[i] - 1] == "\n")
    starts = [0, *(i for i in after_line_end if tokenized.breakable[i])]
    ends = dict(zip(starts, [*starts[1:], len(tokenized)], strict=True))
    windows = windows_of(tokenized, "lines", max_length)
    for (begin, end), _ in pairwise(windows):
        line = max(s for s in starts if s <= end)
        if end in ends:
            assert ends[end] - begin > max_length  # the next line does not fit as well
        else:
            assert ends[line] - line > max_length


@given(data=st.data(), text=TEXTS, max_length=LENGTHS)
@settings(max_examples=300)
def test_a_secret_that_fits_is_whole_in_a_window(tokenizer, data, text, max_length):
    begin = data.draw(st.integers(0, len(text) - 1))
    secret = text[begin : data.draw(st.integers(begin + 1, len(text)))]
    (tokenized,) = tokenize(tokenizer, [text])
    windows = windows_of(tokenized, "lines", max_length, [secret])
    assert [i for b, e in windows for i in range(b, e)] == list(range(len(tokenized)))
    assert all(e - b <= max_length for b, e in windows)
    fitting = [s for s in tokenized.spans_of(secret) if s[1] - s[0] <= max_length]
    if fitting:
        assert whole_in_a_window(tokenized, windows, fitting[0])
        assert any(secret in tokenized.slice(w) for w in windows)


@given(data=st.data(), text=TEXTS, max_length=LENGTHS)
def test_disjoint_secrets_are_all_whole(tokenizer, data, text, max_length):
    (tokenized,) = tokenize(tokenizer, [text])
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), min_size=2, max_size=7)))
    secrets = [text[a:b] for a, b in pairwise(cuts)][::2]
    windows = windows_of(tokenized, "lines", max_length, secrets)
    spans = sorted(
        {s for secret in secrets for s in tokenized.spans_of(secret) if s[1] - s[0] <= max_length}
    )
    if all(a[1] <= b[0] for a, b in pairwise(spans)):
        assert all(whole_in_a_window(tokenized, windows, span) for span in spans)


def test_plain_packing_does_cut_secrets(tokenizer):
    """The property above is not empty: without keep_whole the same secret is cut."""
    text = "x" * 20 + "\n" + "7" * 6 + "-\n" + "7" * 6 + "\n"
    secret = "777777-\n777777"
    (tokenized,) = tokenize(tokenizer, [text])
    plain = windows_of(tokenized, "lines", 30)
    curated = windows_of(tokenized, "lines", 30, [secret])
    assert not any(secret in tokenized.slice(w) for w in plain)
    assert any(tokenized.slice(w).startswith(secret) for w in curated)


@given(text=TEXTS, max_length=LENGTHS)
def test_head_and_tail_are_the_ends_of_the_text(tokenizer, text, max_length):
    (tokenized,) = tokenize(tokenizer, [text])
    ((begin, head),) = windows_of(tokenized, "head", max_length)
    ((tail, end),) = windows_of(tokenized, "tail", max_length)
    assert (begin, end) == (0, len(tokenized))
    assert text.startswith(tokenized.slice((0, head)))
    assert text.endswith(tokenized.slice((tail, end)))
    # At most three tokens short: a character has up to four bytes and is not cut.
    full = min(max_length, len(tokenized))
    assert full - 3 <= head <= full
    assert full - 3 <= end - tail <= full


@given(flags=st.lists(st.booleans(), max_size=12), limit=st.none() | st.integers(1, 6))
def test_windows_with_secrets_are_kept_first(flags, limit):
    windows = [(i, i + 1) for i in range(len(flags))]
    kept = keep_windows(windows, flags, limit)
    assert kept == sorted(kept)
    assert len(kept) == min(len(flags), len(flags) if limit is None else limit)
    dropped = [w for w in windows if w not in kept]
    worst_kept = max(((not flags[i], i) for i, _ in kept), default=(False, -1))
    assert all((not flags[i], i) > worst_kept for i, _ in dropped)


def test_a_text_without_tokens_has_no_window(tokenizer):
    (tokenized,) = tokenize(tokenizer, [""])
    assert windows_of(tokenized, "lines", 8) == []
