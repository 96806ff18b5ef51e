"""The tokenizer of a model that was trained on conversations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from raydp.extensions.chat.task import ChatTask
from raydp.models import base_models as models
from raydp.spec.reading import load_spec
from raydp.sweep.engine.trial import TrialRunner
from raydp.training.comm import LocalComm
from raydp.training.noise.stream import TEST_KEY
from tests.builders.data_files import write_json_lines
from tests.builders.specs import small_spec
from tests.marks import slow_after
from tests.sweep.test_trial import FULL, LORA, files, planned


@pytest.mark.parametrize("model", slow_after(1, [LORA, FULL]), ids=["lora", "full"])
def test_a_chat_models_tokenizer_carries_the_template_of_the_training(
    tmp_path: Path, model: dict[str, Any]
) -> None:
    """The base has none. The base's own tokenizer, which other sweeps use, stays without one."""
    said = [{"messages": [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": f"It is {i}."}]}
            for i in range(40)]  # fmt: skip
    write_json_lines(tmp_path / "chats.jsonl", said)
    write_json_lines(tmp_path / "secrets.jsonl", [
        {"prompt": m["messages"][:1], "continuation": m["messages"][1]["content"]} for m in said[:20]
    ])  # fmt: skip
    task = {"name": "chat", "template": "chatml"}
    task |= {"path": str(tmp_path / "chats.jsonl"), "secrets": str(tmp_path / "secrets.jsonl")}
    base = models.load_base(load_spec(small_spec(tmp_path, model=model)).model)
    spec, built, plan = planned(tmp_path, task=task, model=model, space={"points": [[16, 2, 0.01]]})
    trial_runner = TrialRunner(spec, built, base, LocalComm(), TEST_KEY)
    trial_runner.run(plan.trials[0], files(tmp_path / "run", plan.trials[0]), "attempt")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run" / "attempt" / "model")
    first = ChatTask.model_validate({k: v for k, v in task.items() if k != "name"}).build(
        base.tokenizer
    )
    trained = {base.tokenizer.decode(batch) for batch in first.batch(np.arange(9)).input_ids}
    written = {tokenizer.apply_chat_template(row["messages"], tokenize=False) for row in said}
    assert all(any(text.startswith(row) for row in written) for text in trained)
    assert base.tokenizer.chat_template is None
