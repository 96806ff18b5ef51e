"""A private selection by the leak of planted twins: what it asks for, which run it takes, and what
leaves the folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raydp import Sweep, select
from raydp.extensions.private_selection.release import decide
from raydp.scores.score import Measurement
from raydp.spec.reading import load_spec
from raydp.sweep.planning.plan import plan_to_keep
from raydp.sweep.store.folder import SweepFolder
from raydp.tracking import find_models, show_model
from tests.builders.specs import SMALL_TASK, small_spec
from tests.extensions.private_selection.test_draws import failed, finished, plan_of
from tests.extensions.private_selection.test_private_selection import PRIVACY

TWINS = {
    "name": "planted",
    "of": {**SMALL_TASK},
    "twins": True,
    "own_secrets": False,
    "copies": {2: 12},
}
NAN = float("nan")
SELECT = {"score": "logprob", "rule": "oracle", "max_loss": 3.0}


def leak_spec(folder: Path, **changes: Any) -> dict[str, Any]:
    given = {"task": TWINS, "privacy": PRIVACY, "scores": [{"name": "logprob"}], "select": SELECT}
    return small_spec(folder, **{**given, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"select": {"score": "logprob", "rule": "oracle"}}, r"select\.max_loss must be given"),
        ({"select": {**SELECT, "min_gain_share": 0.9}}, r"select\.min_gain_share must be left out"),
        ({"select": {**SELECT, "rule": "informed"}}, r"select\.rule must be best-utility, or ora"),
        ({"select": {**SELECT, "rule": "best-utility"}}, r"select\.max_loss must be left out"),
        ({"task": {**SMALL_TASK}}, r"task must be planted with twins: true and own_secrets: false"),
        ({"task": {**TWINS, "own_secrets": True}}, r"task must be planted with twins: true and"),
        (
            {"task": {**TWINS, "twins": False, "copies": [1, 4]}},
            r"task must be planted with twins: true and own_secrets: false",
        ),
        (
            {"scores": [{"name": "mia"}], "select": {**SELECT, "score": "mia"}},
            r"select\.score must be a score of secrets alone, such as logprob, .* got 'mia'",
        ),
    ],
)
def test_spec_refuses_a_least_leak_that_private_data_shape(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    load_spec(leak_spec(tmp_path))
    with pytest.raises(ValueError, match=message):
        load_spec(leak_spec(tmp_path, **changes))


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], SweepFolder]:
    spec = leak_spec(
        tmp_path_factory.mktemp("leak"), space={"points": [[32, 3, 0.01], [32, 9, 0.05]]}
    )
    Sweep(spec).run()
    return spec, SweepFolder.open(Path(spec["storage"]) / spec["name"])


@pytest.mark.slow
def test_sweep_releases_the_run_that_leaks_least(ended: tuple[dict[str, Any], SweepFolder]) -> None:
    spec, folder = ended
    results = [folder.result(trial.run_id) for trial in folder.plan().trials]
    assert len(results) == 3
    leaks = {r.run_id: r.scores["logprob"].value for r in results if r is not None}
    best = min(leaks, key=lambda run_id: leaks[run_id])
    uri = spec["tracking"]["uri"]
    (found,) = find_models(uri, order_by="loss").to_dict("records")
    assert (found["run_id"], sorted(found["aliases"])) == (best, ["privacy-preferred"])
    selected = select(folder.path)
    assert (selected.rule, selected.score) == ("oracle", leaks[best])
    privacy = show_model("models:/small@privacy-preferred", tracking_uri=uri)["privacy"]
    said = privacy["private_selection"]
    assert said["best"] == (
        "by the lowest logprob of planted twins among those with a utility loss of at most 3 on "
        "public data"
    )
    assert 0.998 * 8 < privacy["epsilon"] <= 8
    stored = [p for p in folder.path.parents[1].rglob("privacy.md") if "mlruns" in p.parts]
    assert "by the lowest logprob of planted twins" in stored[0].read_text()
    root = folder.path.parents[1]
    files = [root / "mlflow.db", *(p for p in (root / "mlruns").rglob("*") if p.is_file())]
    others = [str(value).encode() for run_id, value in leaks.items() if run_id != best]
    assert not [p for p in files for value in others if value in p.read_bytes()]
    told = [p.name for p in files if str(leaks[best]).encode() in p.read_bytes()]
    assert told == ["summary.json"], "a figure of the released model"


@pytest.mark.parametrize(
    ("losses", "leaks", "chosen"),
    [
        ([2.9, 2.0, 2.5], [0.5, 0.7, 0.9], 0),
        ([3.1, 2.0, 2.5], [0.1, 0.7, 0.6], 2),
        ([3.0, 3.0, 2.0], [0.5, 0.5, 0.5], 0),
        ([3.3, 3.1, 3.2], [0.1, 0.9, 0.2], 1),
        ([None, 3.1, None], [0.1, 0.9, 0.2], 1),
        ([2.0, 2.0, NAN], [NAN, 0.9, 0.1], 1),
    ],
    ids=["least", "useful first", "first of equal ones", "none is useful", "failed", "no number"],
)
def test_the_least_leak_of_the_useful_ones_is_chosen(
    tmp_path: Path, losses: list[float | None], leaks: list[float], chosen: int
) -> None:
    spec = load_spec(leak_spec(tmp_path))
    _, after = plan_of(spec)
    folder = SweepFolder.create(spec, lambda _: plan_to_keep(after, "0" * 16))
    runs = [trial.run_id for trial in folder.plan().trials]
    for run_id, loss, leak in zip(runs, losses, leaks, strict=True):
        score = {"logprob": Measurement(value=leak, std_error=None, num_samples=1)}
        folder.commit(
            failed(run_id) if loss is None else replace(finished(run_id, loss), scores=score)
        )
    assert decide(folder) == runs[chosen]


@pytest.mark.parametrize("select", [{**SELECT, "max_loss": 2.0}, {"score": "logprob"}])
def test_the_order_of_the_runs_may_not_change_before_a_resume(
    tmp_path: Path, select: dict[str, Any]
) -> None:
    """Results of some runs are known then, and the guarantee is of an order that is fixed before."""
    spec = load_spec(leak_spec(tmp_path))
    _, after = plan_of(spec)
    SweepFolder.create(spec, lambda _: plan_to_keep(after, "0" * 16))
    SweepFolder.resume(spec)
    with pytest.raises(ValueError, match=r"got changes in select\. Undo them"):
        SweepFolder.resume(load_spec(leak_spec(tmp_path, select=select)))
