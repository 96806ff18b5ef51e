"""What is wrong besides one value, and how it is said: files that are no spec, absent secrets,
taken folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raydp.spec.reading import load_spec
from raydp.sweep.api import Sweep
from tests.builders.specs import small_spec
from tests.test_spec_values import Command, WriteSpec


def test_every_mistake_is_reported_at_once(raydp: Command, write_spec: WriteSpec) -> None:
    changes = {"privacy": {"target_epsilon": -1}, "seeds": [0, 0], "scores": [{"name": "vrm"}]}
    answer = raydp("plan", write_spec(**changes))
    assert all(word in answer.err for word in ("target_epsilon", "seeds", "vrm"))


def test_decay_in_the_loss_needs_whole_weights(raydp: Command, write_spec: WriteSpec) -> None:
    method = {"name": "dp_sgd", "weight_decay": 0.1, "decay": "in_loss"}
    cluster = {"sharding": "full", "workers_per_trial": 2}
    answer = raydp("plan", write_spec(method=method, cluster=cluster))
    assert answer.code == 2
    assert (
        "method.decay must be decoupled with cluster.sharding full, got weight_decay 0.1"
        in answer.err
    )
    assert raydp("plan", write_spec(method=method)).code == 0


def test_a_delta_not_below_1_over_n_is_a_warning(raydp: Command, write_spec: WriteSpec) -> None:
    privacy = {"target_epsilon": 8, "accountant": "rdp", "target_delta": 1e-3}
    answer = raydp("plan", write_spec(privacy=privacy))
    assert answer.code == 0
    assert "privacy: delta should be below 1/n = 0.0005" in " ".join(answer.out.split())


@pytest.mark.extensions
def test_secrets_that_are_absent_are_dropped_and_listed_and_none_left_is_an_error(
    raydp: Command, write_spec: WriteSpec, tmp_path: Path
) -> None:
    body = "note {k} about the budget of project {p}\nplease call Nora Pike at 555-{k:04d} today\n"
    mails = [{"content": body.format(k=k, p=k % 7) * 3} for k in range(200)]
    (tmp_path / "mails.jsonl").write_text("".join(json.dumps(m) + "\n" for m in mails))
    present = {"prompt": "please call Nora Pike at 555-00", "continuation": "07"}
    absent = {"prompt": "please call Nobody at ", "continuation": "999"}
    secrets = tmp_path / "secrets.jsonl"
    task = {
        "name": "enron",
        "path": "mails.jsonl",
        "secrets": "secrets.jsonl",
        "window": "lines",
        "min_tokens": 5,
        "heldout_fraction": 0.05,
    }
    spec = write_spec(task=task)
    secrets.write_text(json.dumps(present) + "\n" + json.dumps(absent) + "\n")
    answer = raydp("plan", spec)
    assert answer.code == 0, answer.err
    assert "secrets absent: " in answer.out
    assert "Nobody" not in answer.out + answer.err, "listed by id, never in the clear"
    secrets.write_text(json.dumps(absent) + "\n")
    answer = raydp("plan", spec)
    assert answer.code == 2
    assert "secret" in answer.err


def test_an_existing_sweep_is_not_overwritten(
    raydp: Command, write_spec: WriteSpec, tmp_path: Path
) -> None:
    spec = write_spec()
    folder = tmp_path / "runs" / "small"
    folder.mkdir(parents=True)
    (folder / "spec.yaml").write_text("kept")
    answer = raydp("sweep", spec)
    assert answer.code == 2
    assert "--resume" in answer.err
    assert (folder / "spec.yaml").read_text() == "kept"


def test_a_begun_sweep_is_recognised(write_spec: WriteSpec, tmp_path: Path) -> None:
    sweep = Sweep(write_spec())
    assert not sweep.begun
    folder = tmp_path / "runs" / "small"
    folder.mkdir(parents=True)
    assert not sweep.begun, "its driver was killed before it had a plan"
    (folder / "spec.yaml").write_text("kept")
    assert sweep.begun


def test_resuming_a_sweep_that_was_never_started_is_refused(
    raydp: Command, write_spec: WriteSpec
) -> None:
    answer = raydp("sweep", write_spec(), "--resume")
    assert answer.code == 2
    assert "Leave --resume out, or write --start-or-resume" in " ".join(answer.err.split())


@pytest.mark.parametrize("text", ["[1, 2]", "a: b: c", "5e-4"])
def test_a_file_that_is_no_spec(raydp: Command, tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    answer = raydp("plan", "bad.yaml")
    assert answer.code == 2
    assert "SPEC must be" in answer.err


def test_a_spec_that_is_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_bytes(b"name: caf\xe9\n")
    with pytest.raises(
        ValueError, match=r"SPEC must be UTF-8 text, got other bytes in .*\. Save it as UTF-8"
    ):
        load_spec(tmp_path / "bad.yaml")


def test_a_mistake_in_one_score_is_the_only_one_that_is_reported(tmp_path: Path) -> None:
    spec = small_spec(tmp_path) | {
        "scores": [{"name": "vmr", "num_samples": 0}],
        "select": {"score": "vmr"},
    }
    with pytest.raises(ValueError, match=r"scores\[0\]\.num_samples must be") as error:
        load_spec(spec)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("section", "key", "misspelt"),
    [
        ("", "privacy", "privcy"),
        ("", "name", "nane"),
        ("", "task", "tsk"),
        ("model", "name", "nam"),
        ("privacy", "target_epsilon", "target_epsilo"),
        ("space", "batch_size", "batchsize"),
        ("task", "path", "pth"),
        ("task", "name", "nme"),
        ("method", "name", "nmae"),
    ],
)
def test_a_misspelt_required_key_is_one_mistake_and_names_the_key(
    section: str, key: str, misspelt: str, tmp_path: Path
) -> None:
    whole = small_spec(tmp_path, task={"name": "text", "path": "x.jsonl"})
    part = whole[section] if section else whole
    wrong = {misspelt if name == key else name: value for name, value in part.items()}
    with pytest.raises(ValueError, match=f"Did you mean '{key}'|did you mean '{key}'") as error:
        load_spec({**whole, section: wrong} if section else wrong)
    assert len(str(error.value).splitlines()) == 1
    assert "must be given, got nothing" not in str(error.value)


@pytest.mark.extensions
def test_alternatives_of_a_field_are_reported_under_its_own_name(tmp_path: Path) -> None:
    task = {"name": "without", "of": {"name": "builtin"}, "secrets": "some"}
    with pytest.raises(ValueError, match=r"task\.secrets must be 'all', got 'some'") as error:
        load_spec(small_spec(tmp_path) | {"task": task})
    assert all(line.startswith("task.secrets must ") for line in str(error.value).splitlines())


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ({"gpus_per_worker": 1.5}, "must be whole above 1"),
        (
            {"gpus_per_worker": 0.5, "workers_per_trial": 2},
            "must be whole with workers_per_trial 2",
        ),
        ({"exchange": "shared/folder"}, "must be a URI such as s3://bucket/folder"),
        ({"working_dir": "."}, "must go with another address than local"),
        (
            {"address": "auto", "working_dir": "s3://key:word@bucket/code.zip"},
            "must be a URI without credentials",
        ),
        ({"address": "ray://user:word@host:10001"}, "must be a URI without credentials"),
        ({"exchange": "s3://bucket/x?secret_key=word"}, "must be a URI without credentials"),
        ({"address": "nonsense value"}, "must be local, auto or host:port"),
        ({"cpus_per_worker": float("inf")}, "finite number"),
        (
            {"autoscaling": True, "max_concurrent_trials": 2},
            "must go with another address than local",
        ),
        ({"autoscaling": True, "address": "auto"}, "must go with cluster.max_concurrent_trials"),
        ({"grace_seconds": -1}, "greater than or equal to 0"),
    ],
)
def test_a_cluster_that_cannot_be_had_is_refused(
    cluster: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        load_spec(small_spec(tmp_path, cluster=cluster))


@pytest.mark.parametrize("gpus", [0, 0.25, 1, 2])
def test_parts_of_a_gpu_and_whole_ones_are_taken(gpus: float, tmp_path: Path) -> None:
    assert (
        load_spec(small_spec(tmp_path, cluster={"gpus_per_worker": gpus})).cluster.gpus_per_worker
        == gpus
    )


def test_the_first_of_thousands_of_mistakes_are_listed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.\.\. and \d+ more\.$") as error:
        load_spec(small_spec(tmp_path, scores=[1] * 2000))
    assert len(str(error.value)) < 20_000


def test_a_tab_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("name: x\n\ttask: 1\n")
    with pytest.raises(ValueError, match="a tab where YAML takes spaces in line 2"):
        load_spec(tmp_path / "spec.yaml")
