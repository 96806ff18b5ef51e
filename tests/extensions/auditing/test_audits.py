"""Audits: what sweep they are, what their runs prove, and the alarm that a method with a fault
raises."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raydp.extensions.auditing.alarm_writer import note_audit
from raydp.extensions.auditing.audits import audit_spec, conclude, next_audit
from raydp.extensions.auditing.one_run import Guesses, one_run_bound, one_run_p_value
from raydp.extensions.auditing.report import AuditReport, report_of
from raydp.extensions.auditing.source import AuditSubject, source_of
from raydp.plugins import registries
from raydp.scores.score import Measurement
from raydp.search_spaces import Configuration
from raydp.search_spaces.settings import Settings
from raydp.spec.document import SweepSpec
from raydp.spec.reading import load_spec
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.store.alarms import alarms_of
from raydp.sweep.store.results import RunResult
from raydp.tracking import find_models, promote_model
from tests.builders.specs import small_spec
from tests.conftest import Answer
from tests.extensions.auditing.audited import begun, trained
from tests.sweep.trained import SCORES, Trained, TrainedSpec

STATED = {"target_epsilon": 1.0, "target_delta": 1e-5, "accountant": "rdp", "noise_key": "test"}
OPTIONS: dict[str, Any] = {"num_canaries": 1500, "confidence": 0.95, "seeds": (0,)}


def spec_of(folder: Path, **changes: Any) -> SweepSpec:
    return load_spec(small_spec(folder, **{"privacy": STATED, **changes}))


def measured(
    correct: int, guesses: int = 100, canaries: int = 500, epsilon: float | None = 1.0
) -> Measurement:
    """A run's score."""
    counts = Guesses(num_canaries=canaries, num_guesses=guesses, num_correct=correct)
    tested = (
        {}
        if epsilon is None
        else {"epsilon": epsilon, "p_value": one_run_p_value(counts, epsilon, 1e-5)}
    )
    details = {
        "canaries": canaries,
        "guesses": guesses,
        "correct": correct,
        "epsilon_gdp": 0.0,
        **tested,
    }
    return Measurement(
        value=one_run_bound(counts, 1e-5).epsilon, std_error=None, num_samples=1, details=details
    )


def report_with(
    folder: Path, correct: Sequence[int], **changes: Any
) -> tuple[AuditSubject, AuditReport]:
    """A report of runs whose guesses are given: two configurations, a seed after the other."""
    source = AuditSubject(spec=spec_of(folder, seeds=list(range(len(correct) // 2)), **changes))
    options = {**OPTIONS, "seeds": source.spec.seeds, "num_canaries": 500}
    audit = begun(audit_spec(source, name=source.name, coins=1, **options))
    trials = sorted(audit.plan().trials, key=lambda t: (t.num_steps, t.seed))
    for trial, right in zip(trials, correct, strict=True):
        scores = {"one_run_audit": measured(right, epsilon=None if changes else 1.0)}
        audit.commit(
            RunResult(run_id=trial.run_id, status="finished", utility_loss=1.0, scores=scores)
        )
    return source, report_of(source.spec.name, audit)


def test_the_audit_of_a_spec_is_a_sweep_of_its_own(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, privacy={**STATED, "target_delta": None, "delta_exponent": 1.1})
    audit = audit_spec(AuditSubject(spec=spec), name="small-audit", coins=5, **OPTIONS)
    assert audit.task.as_dict()["of"] == spec.task.as_dict()
    assert (audit.task.params.num_canaries, audit.task.params.seed) == (1500, 5)
    assert audit.model.adapter.type == "none"
    assert (audit.space, audit.method) == (spec.space, spec.method)
    assert audit.privacy.delta(10**6) == spec.privacy.delta(
        2000
    )  # the stated one, whatever the canaries make of n
    (score,) = audit.scores
    assert (score.name, score.params.delta, score.params.epsilon) == (
        "one_run_audit",
        spec.privacy.delta(2000),
        1.0,
    )


def test_without_a_guarantee_there_is_nothing_to_refute(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, method={"name": "nonprivate"})
    assert (
        audit_spec(AuditSubject(spec=spec), name="a", coins=5, **OPTIONS).scores[0].params.epsilon
        is None
    )
    _, report = report_with(tmp_path, [100, 100], method={"name": "nonprivate"})
    assert not report.alarm
    assert report.runs[0]["epsilon_hat"] > 3


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        ({"unit": "user"}, r"privacy\.unit must be example for an audit, got user"),
        (
            {"tuning": "private_selection"},
            r"privacy\.tuning must be ignored for an audit, got private_selection",
        ),
    ],
)
def test_an_audit_refuses_unsuitable_specs(
    tmp_path: Path, privacy: dict[str, Any], message: str
) -> None:
    data = small_spec(tmp_path, privacy={**STATED, **privacy}, select={"score": "vmr_exact"})
    with pytest.raises(ValueError, match=message):
        audit_spec(AuditSubject(spec=load_spec(data)), name="a", coins=1, **OPTIONS)


def test_new_tokens_need_every_weight_to_be_trained(tmp_path: Path) -> None:
    data = audit_spec(
        AuditSubject(spec=spec_of(tmp_path)), name="a", coins=1, **OPTIONS
    ).model_dump(mode="json")
    data["model"]["adapter"] = {"type": "lora"}
    with pytest.raises(
        ValueError, match=r"model\.adapter\.type must be none with the task 'audited', got 'lora'"
    ):
        build_task(load_spec(data))


@pytest.mark.slow
def test_the_alarm_is_corrected_for_the_number_of_runs(tmp_path: Path) -> None:
    """83 of 100 right are p = 0.017 against ε = 1: an alarm alone, none among four runs with
    nothing else."""
    _, alone = report_with(tmp_path / "a", [83, 50])
    _, many = report_with(tmp_path / "b", [83, 50, 50, 50])
    p = alone.runs[0]["p_value"] if alone.runs[0]["correct"] == 83 else alone.runs[1]["p_value"]
    assert 0.0125 < p < 0.025
    assert sorted(row["p_holm"] for row in alone.runs)[0] == pytest.approx(2 * p)
    assert sorted(row["p_holm"] for row in many.runs)[0] == pytest.approx(4 * p)
    assert alone.alarm
    assert not many.alarm


def test_bounds_of_several_runs_hold_together(tmp_path: Path) -> None:
    _, report = report_with(tmp_path, [90, 60, 70, 50])
    largest = max(row["epsilon_hat"] for row in report.runs)
    counts = Guesses(num_canaries=500, num_guesses=100, num_correct=90)
    assert report.epsilon_hat == one_run_bound(counts, 1e-5, 1 - 0.05 / 4).epsilon < largest
    assert (
        max(c["epsilon_hat"] for c in report.configurations)
        == one_run_bound(counts, 1e-5, 0.975).epsilon
    )
    assert [c["runs"] for c in report.configurations] == [2, 2]


def test_the_newest_audit_of_a_configuration_decides(tmp_path: Path) -> None:
    one = Configuration(batch_size=32, num_steps=3, learning_rate=0.01)
    other = replace(one, settings=Settings({"method.max_grad_norm": 0.5}))
    for _ in range(2):  # the second time is a second look at it
        note_audit(tmp_path, "small-audit", {one: "refuted", other: None}, {"number": 100})
    assert len(json.loads((tmp_path / "audits.json").read_text())["audits"]) == 1
    assert alarms_of(tmp_path) == {one: "refuted", other: None}
    note_audit(tmp_path, "small-audit-2", {one: None}, {})
    assert alarms_of(tmp_path) == {one: None, other: None}


@pytest.mark.slow
def test_a_sound_method_raises_no_alarm(tmp_path: Path) -> None:
    """Real training, with the coins of the method with a fault below."""
    source = AuditSubject(spec=spec_of(tmp_path, space={"points": [[512, 16, 0.002]]}))
    report = conclude(source, trained(audit_spec(source, name=source.name, coins=3, **OPTIONS)))
    assert not report.alarm
    assert list(alarms_of(source.folder).values()) == [None]


GRADIENT: dict[str, Any] = {
    "canary": "gradient",
    "num_canaries": 900,
    "confidence": 0.95,
    "seeds": (0,),
}
"""Options of an audit with gradient canaries."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["HalfNoise", "DPAdam", "TwiceDrawn"])
def test_gradient_canaries_find_half_of_the_noise_and_twice_the_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Real training of a small network at ε = 4, with the same coins.

    The sound method raises no alarm.
    """
    module = "raydp.methods.dp" if name == "DPAdam" else "tests.extensions.auditing.leaky"
    monkeypatch.setitem(registries.BUILTIN["methods"], "own", f"{module}:{name}")
    stated = {**STATED, "target_epsilon": 4.0, "accountant": "pld"}
    changes: dict[str, Any] = {
        "task": {"name": "digits"},
        "model": {"name": "mlp:1x8x8:10", "adapter": {"type": "none"}},
        "method": {"name": "own", "max_grad_norm": 0.1},
        "privacy": stated,
        "space": {"points": [[256, 40, 0.01]]},
        "scores": [{"name": "mia_outputs"}],
        "select": {"score": "mia_outputs", "min_gain_share": None},
    }
    source = AuditSubject(spec=spec_of(tmp_path, **changes))
    report = conclude(source, trained(audit_spec(source, name=source.name, coins=3, **GRADIENT)))
    (run,) = report.runs
    assert (report.canary, report.access, report.coins) == ("gradient", "gradient", 3)
    assert report.alarm == (name != "DPAdam")
    (noted,) = json.loads((source.folder / "audits.json").read_text())["audits"]
    assert noted["canaries"] == {"kind": "gradient", "access": "gradient", "number": 900, "seed": 3}
    if report.alarm:
        assert run["epsilon_mechanism"] > 4.0
        assert run["p_value"] < 0.01
        (found,) = alarms_of(source.folder).values()
        assert "with access to every noisy gradient, ε is at least" in str(found)
    else:
        assert 0.5 < run["epsilon_mechanism"] < 4.0


@pytest.mark.slow
def test_known_tokens_are_audited_under_the_specs_own_adapter(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, space={"points": [[32, 2, 0.01]]})
    source, options = AuditSubject(spec=spec), {**OPTIONS, "num_canaries": 60}
    audit = audit_spec(source, name=source.name, coins=3, canary="known_token", **options)
    assert audit.model.adapter == spec.model.adapter
    report = conclude(source, trained(audit))
    assert (report.canary, report.access, report.runs[0]["epsilon_mechanism"]) == (
        "known_token",
        "loss",
        None,
    )
    assert not report.alarm


def test_an_unknown_kind_of_canaries_is_refused(tmp_path: Path) -> None:
    message = (
        r"canary must be one of new_token, known_token, gradient, got 'dirac'\. new_token is usual"
    )
    with pytest.raises(ValueError, match=message):
        next_audit(AuditSubject(spec=spec_of(tmp_path)), canary="dirac", **OPTIONS, new=False)


def test_auditable_sources_are_found(tmp_path: Path, write_spec: Callable[..., Path]) -> None:
    path = write_spec(privacy=STATED)
    look: dict[str, Any] = {
        "storage": str(tmp_path / "runs"),
        "tracking_uri": "sqlite:///none.db",
        "spec": None,
    }
    folder = begun(load_spec(path))
    by_file, by_folder, by_name = (source_of(str(w), **look) for w in (path, folder.path, "small"))
    assert by_file.spec == by_folder.spec == by_name.spec
    trial = folder.plan().trials[0]
    run = source_of(str(folder.trial(trial.run_id)), **look)
    assert run.only == trial.configuration
    assert run.name == f"small-audit-{trial.run_id}"
    assert audit_spec(run, name=run.name, coins=1, **OPTIONS).space.points == (
        (trial.batch_size, trial.num_steps, trial.learning_rate),
    )
    for wrong in ("nothing", str(folder.trial("0" * 16))):
        with pytest.raises(ValueError, match=r"must be .*, got '.*\. .*\."):
            source_of(wrong, **look)


@pytest.mark.parametrize(
    "arguments",
    [
        ["nothing.yaml"],
        ["bound", "--canaries", "10", "--guesses", "11", "--correct", "3", "--delta", "0"],
        ["bound", "--canaries", "10", "--guesses", "5", "--correct", "6", "--delta", "0"],
        ["bound", "--canaries", "10", "--guesses", "5", "--correct", "3", "--delta", "1"],
        ["bound", "--canaries", "10", "--guesses", "5"],
    ],
)
def test_bad_input_is_exit_code_2(raydp: Callable[..., Answer], arguments: list[str]) -> None:
    answer = raydp("audit", *arguments, "--json")
    assert (answer.code, answer.out) == (2, "")


def test_the_bound_alone(raydp: Callable[..., Answer]) -> None:
    """The example of Steinke et al. 2023, appendix D: 0.673."""
    asked = [
        "--canaries",
        1000,
        "--guesses",
        100,
        "--correct",
        75,
        "--delta",
        1e-4,
        "--confidence",
        0.95,
    ]
    answer = raydp("audit", "bound", *asked, "--json")
    assert answer.code == 0
    assert round(answer.json()["epsilon"], 3) == 0.673


@pytest.mark.slow
def test_an_alarm_keeps_the_alias_away_until_a_new_audit(
    tmp_path: Path,
    raydp: Callable[..., Answer],
    write_spec: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sweep of a method with a fault, its audit by the command with Ray, and what the registry
    then refuses."""
    monkeypatch.setattr(
        "secrets.randbits", lambda bits: 3
    )  # the coins of the sound method's test: one in a hundred has no alarm
    monkeypatch.setitem(
        registries.BUILTIN["methods"], "leaky", "tests.extensions.auditing.leaky:Leaky"
    )
    method = {"name": "leaky", "max_grad_norm": 0.1}
    changes = {"method": method, "privacy": STATED, "space": {"points": [[512, 16, 0.002]]}}
    path = write_spec(scores=SCORES, **changes)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    Trained(tmp_path, **changes).ending.finish()
    promote_model("models:/small/1", "privacy-preferred", "because", tracking_uri=uri)
    audit = raydp("audit", path, "--canaries", 1500, "--json")
    document = audit.json()
    assert (audit.code, document["alarm"], document["audit"]) == (1, True, "small-audit")
    assert document["runs"][0]["epsilon_hat"] > document["epsilon"] == 1.0
    again = raydp("audit", path, "--canaries", 1500, "--json").json()
    assert again["runs"] == document["runs"]  # nothing is trained a second time
    refused = raydp(
        "models",
        "promote",
        "models:/small/1",
        "--alias",
        "privacy-preferred",
        "--reason",
        "x",
        "--uri",
        uri,
    )
    assert refused.code == 2
    assert "the audit small-audit refutes its ε = 1" in refused.err
    resumed = raydp("sweep", path, "--resume", "--json")
    assert "privacy-preferred is not set: the audit small-audit" in resumed.err
    found = find_models(uri)
    assert set(found["name"]) == {"small"}  # the audit's models are nowhere
    assert not list((tmp_path / "runs" / "small-audit").rglob("*.safetensors"))
    assert raydp("audit", path, "--canaries", 200, "--json").code == 2  # another audit is a new one


@pytest.mark.slow
def test_a_registered_model_is_audited_by_its_name_and_a_sound_method_keeps_its_alias(
    tmp_path: Path, raydp: Callable[..., Answer]
) -> None:
    """The command goes on with an audit whose run was trained in this process; the test above has
    it with Ray."""
    Trained(tmp_path, privacy=STATED, space={"points": [[64, 4, 0.01]]}).ending.finish()
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    source = source_of(
        "models:/small/1", storage=str(tmp_path / "runs"), tracking_uri=uri, spec=None
    )
    TrainedSpec(next_audit(source, num_canaries=60, confidence=0.95, seeds=None, new=False)[0])
    options = ["--canaries", 60, "--uri", uri, "--storage", tmp_path / "runs", "--json"]
    document = raydp("audit", "models:/small/1", *options).json()
    assert document["audit"].startswith("small-audit-")
    assert not document["alarm"]
    promote_model("models:/small/1", "privacy-preferred", "audited", tracking_uri=uri)


@pytest.mark.slow
def test_another_audit_has_a_number_and_new_coins(tmp_path: Path) -> None:
    """The one that was begun goes on with its coins, and with no other options."""
    source = AuditSubject(spec=spec_of(tmp_path))
    first, resume = next_audit(source, **OPTIONS, new=False)
    assert (first.name, resume) == ("small-audit", False)
    begun(first)
    assert next_audit(source, **OPTIONS, new=False) == (first, True)
    second, resume = next_audit(source, **OPTIONS, new=True)
    assert (second.name, resume) == ("small-audit-2", False)
    assert second.task.params.seed != first.task.params.seed
    for changed, named in ({"num_canaries": 200}, "canaries"), ({"confidence": 0.9}, "confidence"):
        with pytest.raises(
            ValueError, match=rf"{named} must be .* as the audit 'small-audit' was started with"
        ):
            next_audit(source, **{**OPTIONS, **changed}, new=False)
    with pytest.raises(
        ValueError, match="canary must be new_token as the audit 'small-audit' was started with"
    ):
        next_audit(source, canary="gradient", **OPTIONS, new=False)


def test_an_audit_of_every_weight_cannot_vary_the_adapter(tmp_path: Path) -> None:
    spec = load_spec(
        small_spec(tmp_path, space={"points": [[32, 3, 0.01]], "model.adapter.r": [2, 4]})
    )
    with pytest.raises(
        ValueError, match=r"space must not vary model\.adapter\.r with --canary new_token"
    ):
        audit_spec(
            AuditSubject(spec=spec),
            name="a",
            coins=1,
            num_canaries=500,
            confidence=0.95,
            seeds=(0,),
        )
