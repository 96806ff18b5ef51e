"""The search for data in public text, against looking for each string by itself."""

from __future__ import annotations

import gzip
import json
import random

import pytest

from raydp.extensions.secrets.corpora import absent
from raydp.extensions.secrets.corpora.absent import Needles, find_in_corpus, squeeze
from raydp.tasks.task import Secret

WORDS = ["alpha", "béta", "Nordvik", "gamma", "delta", "ünder", "noon"]


def texts(count, seed, words=30):
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(2, words))) for _ in range(count)]


@pytest.mark.parametrize("block", [50, 1 << 22])
@pytest.mark.parametrize("kind", ["txt", "txt.gz", "jsonl"])
def test_counts_are_those_of_a_plain_search(tmp_path, monkeypatch, block, kind):
    """Also where blocks of a plain text cut samples, secrets and keywords in two."""
    monkeypatch.setattr(absent, "BLOCK", block)
    public = texts(40, seed=1, words=60)
    samples = [
        *texts(60, seed=2, words=4),
        public[3],
        public[17][5:90],
        "béta  \n gamma",
        "never in it",
    ]
    secrets = [
        Secret(prompt="alpha", continuation=" béta\nnoon", number=1),
        Secret(prompt="noon", continuation=" not there", number=2),
    ]
    path = tmp_path / f"public.{kind}"
    lines = (
        public
        if "txt" in kind
        else [json.dumps({"id": i, "text": t}) for i, t in enumerate(public)]
    )
    content = "\n".join(lines).encode()
    path.write_bytes(gzip.compress(content) if kind.endswith("gz") else content)
    (row,) = find_in_corpus(Needles.of(samples, secrets, ["NORDVIK", "noon"]), [path])
    documents = [squeeze(" ".join(public))] if "txt" in kind else [squeeze(t) for t in public]
    distinct = {squeeze(s) for s in samples}
    assert row["samples_found"] == sum(any(s in d for d in documents) for s in distinct) > 2
    assert "never in it" not in documents[0]
    named = {s.name: squeeze(s.prompt + s.continuation) for s in secrets}
    assert row["secrets_found"] == [
        name for name, s in named.items() if any(s in d for d in documents)
    ]
    assert row["keywords"] == {
        w: sum(d.casefold().count(w) for d in documents) for w in ("nordvik", "noon")
    }
    assert row["documents"] == len(documents)


def test_the_command_tells_counts_and_names_only(raydp, tmp_path):
    data, secrets = tmp_path / "mails.jsonl", tmp_path / "secrets.jsonl"
    data.write_text(
        "".join(json.dumps({"content": f"mail {i} about Halborn's plan"}) + "\n" for i in range(5))
    )
    secrets.write_text('{"prompt": "Mira", "continuation": " Halborn 0142"}\n')
    clean, leaking = tmp_path / "clean.txt", tmp_path / "leaking.jsonl"
    clean.write_text("nothing of it\nat all\n")
    leaking.write_text(
        '{"text": "I saw mail 3 about Halborn\'s plan, and Mira\\n Halborn 0142."}\n'
    )
    common = ("data", "absent", data, "--secrets", secrets, "--keyword", "plan", "--json")
    answer = raydp(*common, "--corpus", clean)
    assert (answer.code, answer.json()["absent"]) == (0, True)
    answer = raydp(*common, "--corpus", clean, "--corpus", leaking)
    assert answer.code == 1
    found = answer.json()
    assert [f["samples_found"] for f in found["files"]] == [0, 1]
    assert found["files"][1]["secrets_found"] == ["secret-001"]
    assert found["files"][1]["keywords"] == {"plan": 1}
    assert "Halborn" not in answer.out + answer.err
    assert raydp(*common, "--corpus", tmp_path / "gone.txt").code == 2
    (tmp_path / "blank.txt").write_text(" \n")
    answer = raydp(*common, "--corpus", clean, "--corpus", tmp_path / "blank.txt")
    assert (answer.code, "--corpus must hold text" in answer.err) == (2, True), (
        "nothing read is no proof of absence"
    )
    assert raydp(*common, "--corpus", clean, "--keyword", " ").code == 2
