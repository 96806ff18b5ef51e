"""Every mechanism on scikit-learn's digits at one stated ε, side by side: utility, membership
inference, and what an audit of one more run proves.

    OMP_NUM_THREADS=1 python benchmarks/mechanisms.py --storage raydp_runs/mechanisms --output
    mechanisms.json

The sweeps are those of docs/specs/mechanisms with ε = 8, one δ, three seeds and one score. Of each
the configuration with the lowest mean loss is shown and audited with 500 canaries. What is in the
storage is read and not run again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import yaml
from machine import describe

import raydp
from raydp.extensions.auditing.audits import run_audit
from raydp.extensions.auditing.source import AuditSubject
from raydp.spec.document import SweepSpec
from raydp.spec.reading import load_spec
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.json_files import read_json

SPECS = Path(__file__).parents[1] / "docs" / "specs" / "mechanisms"
SEEDS = [0, 1, 2]
EPSILON, DELTA = 8.0, 1e-4
NOT_AUDITED = {"pate"}
"""No teacher votes on the classes of the canaries: `raydp audit` refuses it."""


def spec_of(path: Path, storage: Path) -> SweepSpec:
    """A mechanism's own spec, at the ε, δ, seeds and score of all."""
    spec = yaml.safe_load(path.read_text())
    spec["privacy"].update(target_epsilon=EPSILON, target_delta=DELTA, accountant="pld")
    spec["privacy"].pop("delta_exponent", None)
    tracking = {"uri": f"sqlite:///{storage.resolve()}/mlflow.db", "registered_model": spec["name"]}
    scores = [score for score in spec["scores"] if score["name"] == "mia_outputs_of_reference"]
    scores = [{"name": "mia_outputs"}, *({"name": score["name"]} for score in scores)]
    select = {"score": "mia_outputs", "min_gain_share": 0.9}
    return load_spec({
        **spec, "seeds": SEEDS, "scores": scores, "select": select, "storage": str(storage), "tracking": tracking,
    })  # fmt: skip


def row_of(spec: SweepSpec) -> dict[str, Any]:
    """Run what has not run, and audit the configuration with the lowest mean loss."""
    folder = Path(spec.storage) / spec.name
    if not (folder / "report.html").is_file():
        raydp.Sweep(spec).run(resume=folder.is_dir())
    points = raydp.load_points(folder / "points.csv")
    axes = ["batch_size", "num_steps", "learning_rate"]
    means = points.groupby(axes)[["utility_loss", "score.mia_outputs"]].agg(["mean", "std"])
    best = means[("utility_loss", "mean")].idxmin()
    configuration = (int(best[0]), int(best[1]), float(best[2]))
    figures, plan = means.loc[best], read_json(SweepFolder(path=folder).path / "plan.json")
    run_id = next(
        t["run_id"] for t in plan["trials"] if tuple(t[axis] for axis in axes) == configuration
    )
    record = plan["records"][plan["privacy"][run_id]]
    return {
        "mechanism": spec.name,
        "configuration": configuration,
        "num_examples": plan["facts"]["num_examples"],
        "epsilon": record["epsilon"],
        "epsilon_training": record.get("data_sets", {}).get("training", {}).get("epsilon"),
        "claimed_epsilon": record.get("claimed_epsilon"),
        "certified": record["certified"],
        "error_rate": figures[("utility_loss", "mean")],
        "error_rate_std": figures[("utility_loss", "std")],
        "mia": figures[("score.mia_outputs", "mean")],
        "mia_std": figures[("score.mia_outputs", "std")],
        **({} if spec.method.name in NOT_AUDITED else audited(spec, configuration)),
    }


def audited(spec: SweepSpec, configuration: tuple[int, int, float]) -> dict[str, Any]:
    """What one more run of the configuration with canaries proves."""
    audit = run_audit(AuditSubject(spec=spec, only=configuration))
    (run,) = audit.runs
    return {
        "epsilon_hat": run["epsilon_hat"],
        "right_guesses": f"{run['correct']} of {run['guesses']}",
        "alarm": audit.alarm,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--storage", type=Path, default=Path("raydp_runs/mechanisms"))
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    args.storage.mkdir(parents=True, exist_ok=True)
    rows = []
    for path in sorted(SPECS.glob("*.yaml")):
        rows.append(row_of(spec_of(path, args.storage)))
        print(json.dumps(rows[-1]), flush=True)
    if args.output:
        args.output.write_text(
            json.dumps({**describe("torch", "ray"), "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
