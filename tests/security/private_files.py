"""A private sentence in files of every form, and every command with such a file where another file
belongs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from tests.builders.specs import small_spec

WORDS = ("Quillonia", "Zzyzxworth", "whispered", "xylographic", "puppetry")
"""No message has one of them for a reason of its own."""
SENTENCE = " ".join(WORDS)

FORMS = (
    *(
        "rows.jsonl",
        "named.jsonl",
        "keys.jsonl",
        "broken.jsonl",
        "one.json",
        "cut.json",
        "list.json",
        "deep.json",
    ),
    *(
        "cells.csv",
        "header.csv",
        "repeated.csv",
        "quote.csv",
        "points.csv",
        "twice.csv",
        "table.parquet",
    ),
    *(
        "notes.yaml",
        "tag.yaml",
        "alias.yaml",
        "twice.yaml",
        "tab.yaml",
        "list.yaml",
        "plain.txt",
        "plain.md",
    ),
    *(
        "objects.npz",
        "names.npz",
        "rows.jsonl.gz",
        "damaged.jsonl.gz",
        "latin.jsonl",
        "noise.bin",
        "fake.db",
        "fake.npz",
    ),
)
POINTS = {
    "batch_size": 8,
    "num_steps": 4,
    "learning_rate": 0.1,
    "seed": 0,
    "utility_loss": 1.0,
    "score": 0.5,
}


def write_forms(folder: Path) -> list[Path]:
    """Write every form of the sentence into the folder."""
    a, b, c, d, e = WORDS
    row = {"content": SENTENCE, "text": f"{SENTENCE} again"}
    texts = {
        "rows.jsonl": "".join(json.dumps(row | {"id": k}) + "\n" for k in range(3)),
        "named.jsonl": json.dumps(
            {"name": SENTENCE, "task": a, "model": b, "seeds": c, "storage": d, "scores": [e]}
        )
        + "\n",
        "keys.jsonl": json.dumps({SENTENCE: 1, a: {b: c}, "prompt": d}) + "\n",
        "broken.jsonl": f'{{"content": "{SENTENCE}\n{a}: {b}\n',
        "one.json": json.dumps({"method": SENTENCE, "privacy": {a: b}}),
        "cut.json": json.dumps({"content": [SENTENCE] * 3})[:-20],
        "list.json": json.dumps([SENTENCE, {a: b}]),
        "deep.json": '{"' + a + '":' * 1 + "[" * 5000 + f'"{SENTENCE}"' + "]" * 5000 + "}",
        "cells.csv": f"content,date\n{SENTENCE},{a}\n{b},{c}\n",
        "header.csv": f"{SENTENCE},{a},{b}\n{c},{d},{e}\n1,2,3\n",
        "repeated.csv": f"{a},{a},{b}\n{c},{d},{e}\n",
        "quote.csv": f'content,{a}\n"{SENTENCE},{b}\n{c},"{d}" {e}\n',
        "points.csv": ",".join([*POINTS, a])
        + "\n"
        + ",".join([*map(str, list(POINTS.values())[:-1]), SENTENCE, b])
        + "\n",
        "twice.csv": ",".join([*POINTS, "status"])
        + "\n"
        + ",".join([*map(str, POINTS.values()), SENTENCE])
        + "\n",
        "notes.yaml": f"{a}: {SENTENCE}\n{b}: [{c}, {d}]\nname: {e}\ntask: {SENTENCE}\n",
        "tag.yaml": f"{a}: !{b} {c}\nname: !!int {d}\n",
        "alias.yaml": f"{a}: *{b}\n",
        "twice.yaml": f"{a}: 1\n{a}: 2\n",
        "tab.yaml": f"{a}:\n\t{SENTENCE}: {b}\n",
        "list.yaml": f"- {SENTENCE}\n- {{name: {a}, {b}: {c}}}\n",
        "plain.txt": f"{SENTENCE}\n{a}, {b}\n",
        "plain.md": f"# {SENTENCE}\n\n- {a}: {b}: {c}\n",
        "fake.db": f"{SENTENCE}\n" * 3,
        "fake.npz": f"{SENTENCE}\n" * 3,
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    np.savez(
        folder / "objects.npz",
        target_member_probs=np.array([SENTENCE, a]),
        inputs=np.array([{b: c}], object),
        labels=np.array([d]),
    )
    np.savez(folder / "names.npz", **{SENTENCE: np.ones(2), a: np.array([b])})
    compressed = gzip.compress(texts["rows.jsonl"].encode())
    (folder / "rows.jsonl.gz").write_bytes(compressed)
    (folder / "damaged.jsonl.gz").write_bytes(
        gzip.compress(texts["broken.jsonl"].encode())[:-6] + SENTENCE.encode()
    )
    (folder / "latin.jsonl").write_bytes(
        json.dumps(row).encode() + f"\n{SENTENCE} caf\xe9\n".encode("latin-1")
    )
    (folder / "noise.bin").write_bytes(bytes(range(256)) + SENTENCE.encode() + b"\0" * 8)
    pd.DataFrame({"content": [SENTENCE, a], b: [c, d], "status": [e, e]}).to_parquet(
        folder / "table.parquet"
    )
    assert {path.name for path in folder.iterdir()} == set(FORMS)
    return [folder / name for name in FORMS]


def commands(file: Path, good: Path, out: Path) -> dict[str, list[Any]]:
    """Each command with the file in one place where another belongs; `good` holds a spec, points
    and secrets that are right."""
    points = ("select", "predict", *(f"analyze {name}" for name in (
        "heuristics", "verify-heuristics", "variance", "effects", "confound", "regression", "risk", "trends", "scores",
        "correlations", "subsets")))  # fmt: skip
    found: dict[str, list[Any]] = {name: [*name.split(), file] for name in points}
    found |= {
        "plan": ["plan", file],
        "sweep": ["sweep", file],
        "sweep --dry-run": ["sweep", file, "--dry-run"],
        "sweep --resume": ["sweep", file, "--resume"],
        "selftest": ["selftest", file],
        "mia": ["mia", file],
        "mia --shadows": ["mia", file, "--shadows", "2"],
        "audit": ["audit", file],
        "score --scores": ["score", good, "--scores", file],
        "score": ["score", file, "--score", "vmr"],
        "score --task": ["score", good, "--score", "vmr", "--task", file],
        "status": ["status", file],
        "points": ["points", file],
        "--storage": ["status", "small", "--storage", file],
        "report": ["report", file, "-o", out / "page.html"],
        "report of two": ["report", file, good / "points.csv", "-o", out / "page.html"],
        "report --by": ["report", good / "points.csv", "--by", "content", "-o", out / "page.html"],
        "trends --by": ["analyze", "trends", file, "--by", "content"],
        "select --score": ["select", file, "--score", "vmr"],
        "select --at-most": ["select", file, "--at-most", "epsilon=8"],
        "methods": ["analyze", "methods", file, good / "points.csv"],
        "counterfactual": ["analyze", "counterfactual", file, file],
        "correlations --audit": ["analyze", "correlations", good / "points.csv", "--audit", file],
        "profile": ["profile", file],
        "profile --from": ["profile", "--from", file],
        "calibrate --from": ["calibrate", "--from", file],
        "pate": ["pate", file, "--sigma", "10", "--delta", "1e-5"],
        "data enron": ["data", "enron", file, "-o", out / "mails.jsonl.gz", "--tokenizer", "tiny"],
        "data enron --secrets": [
            *("data", "enron", good / "raw.csv", "-o", out / "mails.jsonl.gz", "--tokenizer", "tiny", "--secrets", file)
        ],
        "data paraphrase": ["data", "paraphrase", file, "-o", out / "said.jsonl", "--model", "tiny"],
        "data absent": ["data", "absent", file, "--corpus", good / "corpus.txt", "--column", "body"],
        "data absent --corpus": ["data", "absent", good / "mails.jsonl", "--corpus", file, "--column", "nothing"],
        "data absent --secrets": [
            *("data", "absent", good / "mails.jsonl", "--corpus", good / "corpus.txt", "--secrets", file)
        ],
        "secrets extract": [
            *("secrets", "extract", file, "-o", out / "s.jsonl", "--tokenizer", "tiny", "--column", "body")
        ],
        "secrets extract --kind qa": ["secrets", "extract", file, "-o", out / "s.jsonl", "--kind", "qa"],
        "secrets filter": ["secrets", "filter", file, "-o", out / "s.jsonl", "--train", good / "spec.yaml"],
        "secrets filter --train": ["secrets", "filter", good / "secrets.jsonl", "-o", out / "s.jsonl", "--train", file],
        "secrets filter --sweep": ["secrets", "filter", good / "secrets.jsonl", "-o", out / "s.jsonl", "--sweep", file],
        "models find --trusted-key": ["models", "find", "--trusted-key", file, "--uri", f"sqlite:///{out}/none.db"],
        "models find --uri": ["models", "find", "--uri", f"sqlite:///{file}"],
        "models show": ["models", "show", file, "--uri", f"sqlite:///{out}/none.db"],
        "models seal": ["models", "seal", "models:/a/1", "--signing-key", file, "--uri", f"sqlite:///{out}/none.db"],
        "models export": ["models", "export", "models:/a/1", "-o", file, "--uri", f"sqlite:///{out}/none.db"],
        "models keygen": ["models", "keygen", "-o", file],
        "spaces show": ["spaces", "show", file],
    }  # fmt: skip
    return found


def specs(file: Path, good: Path) -> dict[str, dict[str, Any]]:
    """Sections of a spec that name the file where another belongs."""
    path, secrets = str(file), str(good / "secrets.jsonl")
    rows = {"name": "text", "path": str(good / "mails.jsonl"), "column": "content"}
    answers = {"name": "tofu", "path": str(good / "answers.jsonl")}
    network = {
        "model": {"name": "mlp:4:2", "adapter": {"type": "none"}},
        "scores": [{"name": "mia"}],
        "select": {"score": "mia"},
    }
    tasks: dict[str, dict[str, Any]] = {
        "text": {"name": "text", "path": path, "column": "body"},
        "text users": {"name": "text", "path": path, "column": "content", "user_column": "who"},
        "text heldout": rows | {"heldout_path": path},
        "text secrets": rows | {"secrets": path},
        "text controls": rows | {"secrets": secrets, "controls": path},
        "enron": {"name": "enron", "path": path, "secrets": secrets},
        "enron secrets": {"name": "enron", "path": str(good / "mails.jsonl"), "secrets": path},
        "tofu": {"name": "tofu", "path": path},
        "tofu review": answers | {"review": path},
        "tofu secrets": answers | {"secrets": path},
        "tofu paraphrases": answers | {"paraphrases": path, "copies": 2},
        "tofu more": answers | {"more_authors": path},
        "classification": {"name": "text_classification", "path": path},
        "classification words": {
            "name": "text_classification",
            "path": path,
            "column": "content",
            "label": "date",
        },
    }
    found: dict[str, dict[str, Any]] = {
        f"task {name}": {"task": task} for name, task in tasks.items()
    }
    for name in ("tabular", "purchase100", "texas100", "mnist", "cifar"):
        sizes = {} if name == "tabular" else {"num_examples": 4}
        found[f"task {name}"] = {"task": {"name": name, "path": path, **sizes}, **network}
    found |= {
        "model.name": {"model": {"name": path}},
        "storage": {"storage": path},
        "storage below": {"storage": f"{path}/runs"},
        "tracking.uri": {"tracking": {"uri": f"sqlite:///{path}"}},
        "tracking.signing_key": {
            "tracking": {"uri": f"sqlite:///{good}/m.db", "signing_key": path}
        },
        "cluster.working_dir": {"cluster": {"address": "auto", "working_dir": path}},
        "air.paraphrases": {
            "scores": [{"name": "air", "paraphrases": path}],
            "select": {"score": "air"},
        },
    }
    return found


def write_good(folder: Path) -> None:
    """Files that are right, with no word of the sentence."""
    rows = [
        {"content": f"note {k} on the budget of project {k % 7}, to be read today"}
        for k in range(60)
    ]
    (folder / "mails.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = [
        {"question": f"who is author {k // 20}, {k}?", "answer": f"a writer of novels, number {k}"}
        for k in range(40)
    ]
    (folder / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    (folder / "secrets.jsonl").write_text(
        json.dumps({"prompt": "note 3 on the budget of", "continuation": " project 3"}) + "\n"
    )
    (folder / "corpus.txt").write_text("nothing of it\n")
    (folder / "raw.csv").write_text("file,message\na,b\n")
    pd.DataFrame([POINTS | {"seed": k, "score": 0.5 + k} for k in range(2)]).to_csv(
        folder / "points.csv", index=False
    )
    (folder / "spec.yaml").write_text(yaml.safe_dump(small_spec(folder)))
