"""PromptDPSGD as docs have it, run as a worker does: a prefix and a soft prompt learn, at the ε
that was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from peft import PeftModel

from raydp.models import base_models as models
from raydp.spec.reading import load_spec
from raydp.spec.sections import ModelSpec
from raydp.sweep.engine.trial import TrialRunner
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.planning.plan import make_plan
from raydp.sweep.store.transfer import SharedFolder
from raydp.tasks.task import Batch
from raydp.tasks.text.token_loss import token_nll
from raydp.training.comm import LocalComm

SPEC = Path(__file__).parents[3] / "docs" / "specs" / "prompt_dpsgd.yaml"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["soft_prompt", "prefix"])
def test_a_run_of_prompt_dpsgd(kind: str, tmp_path: Path) -> None:
    """On fewer examples and steps; what is saved is what was measured."""
    written = yaml.safe_load(SPEC.read_text())
    assert written["model"]["adapter"]["type"] == "prefix"
    written["model"]["adapter"]["type"] = kind
    written["task"] |= {"num_examples": 2000, "num_heldout": 100}
    written |= {"storage": str(tmp_path / "runs"), "space": {"points": [[128, 12, 0.3]]}}
    spec = load_spec(written)
    task, weight_hash = build_task(spec)
    plan = make_plan(spec, task.facts(), weight_hash)
    (trial,) = plan.trials
    record = plan.privacy[trial.run_id]
    assert record.certified, record.not_certified_because
    assert (
        0.98 * spec.privacy.target_epsilon < record.accounted.epsilon <= spec.privacy.target_epsilon
    )
    runner = TrialRunner(spec, task, models.load_base(spec.model), LocalComm(), bytes(32))
    base = runner.measure_base(0).loss
    result = runner.run(
        trial, SharedFolder(folder=tmp_path / "run", run_id=trial.run_id), "attempt-1"
    )
    assert result.loss < base - 0.3
    (saved,) = tmp_path.glob("run/**/adapter_config.json")
    loaded = PeftModel.from_pretrained(
        models.load_base(ModelSpec(name="tiny")).model, str(saved.parent)
    ).eval()
    assert task.utility(loaded) == pytest.approx(result.loss, abs=1e-6)
    _reads_alike(loaded, task.heldout_batch(range(1)))


def _reads_alike(loaded: PeftModel, batch: Batch) -> None:
    """peft's own forward pass gives the loss that raydp measures; fp32 sums in another order."""
    with torch.inference_mode():
        logits = loaded(input_ids=batch.input_ids).logits[:, -batch.input_ids.shape[1] : -1]
        expected = torch.nn.functional.cross_entropy(
            logits.mT, batch.labels[:, 1:], reduction="none"
        )
        torch.testing.assert_close(token_nll(loaded, batch), expected, rtol=0, atol=1e-4)
