"""A value that no spec may have never starts a training: exit code 2 and a message that says what
to change."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Answer
from tests.marks import slow_after

WriteSpec = Callable[..., Path]
Command = Callable[..., Answer]

RDP = {"target_epsilon": 8, "accountant": "rdp"}
SELECTION = {**RDP, "tuning": "private_selection"}
SPACE = {"batch_size": [32], "num_steps": [3], "learning_rate": [0.01]}

BAD = {
    "b above n": (
        {"space": {**SPACE, "batch_size": [32, 4001]}},
        r"space.batch_size must be <= num_examples 2000.*4001",
    ),
    "b below 1": (
        {"space": {**SPACE, "batch_size": [0]}},
        r"space.batch_size\[0\] must be greater than or equal to 1, got 0",
    ),
    "T below 1": (
        {"space": {**SPACE, "num_steps": [0]}},
        r"space.num_steps\[0\] must be greater than or equal to 1, got 0",
    ),
    "η of 0": (
        {"space": {**SPACE, "learning_rate": [0.0]}},
        r"space.learning_rate\[0\] must be greater than 0, got 0.0",
    ),
    "η below 0": (
        {"space": {**SPACE, "learning_rate": [-1e-3]}},
        r"space.learning_rate\[0\] must be greater than 0",
    ),
    "η not a number": (
        {"space": {**SPACE, "learning_rate": [float("nan")]}},
        r"space.learning_rate\[0\] must be",
    ),
    "ε of 0": (
        {"privacy": {"target_epsilon": 0}},
        r"privacy.target_epsilon must be greater than 0, got 0",
    ),
    "ε below 0": (
        {"privacy": {"target_epsilon": -1}},
        r"privacy.target_epsilon must be greater than 0, got -1",
    ),
    "δ of 1": (
        {"privacy": {"target_epsilon": 8, "target_delta": 1.0}},
        r"privacy.target_delta must be less than 1",
    ),
    "two δ": (
        {"privacy": {"target_epsilon": 8, "target_delta": 1e-5, "delta_exponent": 1.1}},
        r"privacy takes target_delta or delta_exponent, got both",
    ),
    "c of 0": (
        {"method": {"name": "dp_adam", "max_grad_norm": 0.0}},
        r"method.max_grad_norm must be greater than or equal to 0.000000000001, got 0.0",
    ),
    "c that single precision cannot compare with": (
        {"method": {"name": "dp_adam", "max_grad_norm": 1e-24}},
        r"method.max_grad_norm must be greater than or equal to 0.000000000001, got 1e-24",
    ),
    "a registry's name": (
        {"tracking": {"registered_model": "team/model"}},
        r"tracking.registered_model must be letters, digits.*got 'team/model'",
    ),
    "c without end": (
        {"method": {"name": "dp_adam", "max_grad_norm": float("inf")}},
        r"method.max_grad_norm must be",
    ),
    "ε beyond use": (
        {"privacy": {"target_epsilon": 1e9}},
        r"privacy.target_epsilon must be less than or equal to 1000",
    ),
    "rank beyond use": (
        {"model": {"name": "tiny", "adapter": {"r": 10**12}}},
        r"model.adapter.r must be less than",
    ),
    "a prompt of no length": (
        {"model": {"name": "tiny", "adapter": {"type": "soft_prompt", "num_virtual_tokens": 0}}},
        r"model.adapter.num_virtual_tokens must be greater than or equal to 1",
    ),
    "a prompt that leaves no positions": (
        {"model": {"name": "tiny", "adapter": {"type": "soft_prompt", "num_virtual_tokens": 250}}},
        r"fit the 256 positions of 'tiny', got one of \d+ tokens and a soft prompt of 250. Shorten them",
    ),
    "a prefix that leaves no positions": (
        {"model": {"name": "tiny", "adapter": {"type": "prefix", "num_virtual_tokens": 250}}},
        r"fit the 256 positions of 'tiny', got one of \d+ tokens and a prefix of 250. Shorten them",
    ),
    "layers for a prefix": (
        {"model": {"name": "tiny", "adapter": {"type": "prefix", "layers_to_transform": [1]}}},
        r"layers_to_transform must be left out with type 'prefix', got \(1,\). Remove it, or use type 'lora'",
    ),
    "a rank for a soft prompt": (
        {"model": {"name": "tiny", "adapter": {"type": "soft_prompt", "r": 4}}},
        r"model.adapter.r must be left out with type 'soft_prompt', got 4. Remove it, or use type 'lora'",
    ),
    "a prompt's length for LoRA": (
        {"model": {"name": "tiny", "adapter": {"num_virtual_tokens": 4}}},
        r"num_virtual_tokens must be left out with type 'lora', got 4. Remove it, or use .* 'soft_prompt' or 'prefix'",
    ),
    "layers for full fine-tuning": (
        {"model": {"name": "tiny", "adapter": {"type": "none", "layers_to_transform": [1]}}},
        r"layers_to_transform must be left out with type 'none'",
    ),
    "no points": ({"space": {"points": []}}, r"space.points must have at least 1 item"),
    "seed beyond 63 bits": ({"seeds": [10**30]}, r"seeds\[0\] must be"),
    "threshold not a number": (
        {"select": {"score": "vmr_exact", "max_loss": float("nan")}},
        r"select.max_loss must be",
    ),
    "unknown rule": (
        {"select": {"score": "vmr_exact", "rule": "procedur"}},
        r"select.rule 'procedur' is unknown. Did you mean 'procedure'",
    ),
    "a target that is no layer": (
        {"model": {"name": "tiny", "adapter": {"target_modules": ["q_proj", "vproj"]}}},
        r"target_modules must each name linear layers of 'tiny', got \['vproj'\]. It has .*v_proj",
    ),
    "a target that is an embedding": (
        {"model": {"name": "tiny", "adapter": {"target_modules": ["embed_tokens"]}}},
        r"target_modules must each name linear layers of 'tiny', got \['embed_tokens'\]",
    ),
    "model misspelt": ({"model": {"name": "tinny"}}, r"Did you mean 'tiny'\?"),
    "unknown section": ({"methods": {}}, r"'methods' is unknown. Did you mean 'method'\?"),
    "unknown key": (
        {"privacy": {"target_epsilom": 8}},
        r"'target_epsilom' is unknown. Did you mean 'target_epsilon'\?",
    ),
    "unknown key of a plug-in": (
        {"method": {"name": "dp_adam", "max_grad_nrom": 0.1}},
        r"'max_grad_nrom' is unknown. Did you mean 'max_grad_norm'\?",
    ),
    "unknown score": (
        {"scores": [{"name": "vmr_exakt"}]},
        r"scores\[0\].name 'vmr_exakt' is unknown. Did you mean 'vmr_exact'\?",
    ),
    "unknown task": (
        {"task": {"name": "buildin"}},
        r"task.name 'buildin' is unknown. Did you mean 'builtin'\?",
    ),
    "unknown accountant": (
        {"privacy": {"target_epsilon": 8, "accountant": "prw"}},
        r"Did you mean 'prv'\?",
    ),
    "unknown space": (
        {"space": {"name": "tofu1"}},
        r"space.name 'tofu1' is unknown. Did you mean 'tofu-1'\?",
    ),
    "space of two kinds": ({"space": {"name": "tofu-1", **SPACE}}, r"space must be \{name"),
    "repeated point": (
        {"space": {"points": [[8, 3, 1e-3], [8, 3, 0.001]]}},
        r"must not repeat a configuration",
    ),
    "selected score not measured": (
        {"select": {"score": "vmr"}},
        r"select.score 'vmr' is not measured in this sweep. Add it to scores, or choose one of: vmr_exact",
    ),
    "selected score unknown": (
        {"select": {"score": "vmr_exakt"}},
        r"select.score 'vmr_exakt' is unknown. Did you mean 'vmr_exact'\?",
    ),
    "column that no row has": (
        {"task": {"name": "text", "path": "qa.jsonl", "column": "body"}},
        r"task.column must be a column of the file, got 'body'. The file has question, answer. Choose one.",
    ),
    "a distribution with tuning ignored": (
        {"privacy": {**RDP, "num_runs": {"mean": 3}}},
        r"privacy.num_runs must be left out with tuning ignored",
    ),
    "private selection by prv": (
        {"privacy": {**SELECTION, "accountant": "prv"}},
        r"privacy.accountant must be pld or rdp with tuning private_selection, got 'prv'",
    ),
    "private selection by a score": (
        {"privacy": SELECTION, "select": {"score": "vmr_exact", "rule": "procedure"}},
        r"select.rule must be best-utility, or oracle on planted twins, with privacy.tuning private.*got 'procedure'",
    ),
    "private selection under a gain": (
        {"privacy": SELECTION, "select": {"score": "vmr_exact", "min_gain_share": 0.9}},
        r"select.min_gain_share must be left out with privacy.tuning private_selection, got 0.9",
    ),
    "private selection under a loss": (
        {"privacy": SELECTION, "select": {"score": "vmr_exact", "max_loss": 2}},
        r"select.max_loss must be left out with privacy.tuning private_selection, got 2",
    ),
    "private selection with seeds": (
        {"privacy": SELECTION, "select": {"score": "vmr_exact"}, "seeds": [0, 1]},
        r"seeds must be left out with privacy.tuning private_selection, got \[0, 1\]",
    ),
    "private selection with run logs": (
        {
            "privacy": SELECTION,
            "select": {"score": "vmr_exact"},
            "tracking": {"loggers": ["wandb"]},
        },
        r"tracking.loggers must be left out with privacy.tuning private_selection, got \['wandb'\]. Remove it",
    ),
    "unknown logger": (
        {"tracking": {"loggers": ["tensorbord"]}},
        r"tracking.loggers\[0\] must be 'tensorboard' or 'wandb', got 'tensorbord'",
    ),
    "repeated logger": (
        {"tracking": {"loggers": ["wandb", "wandb"]}},
        r"tracking.loggers must be distinct, got \['wandb', 'wandb'\]. Remove the repeated ones",
    ),
    "private selection without privacy": (
        {"privacy": SELECTION, "select": {"score": "vmr_exact"}, "method": {"name": "nonprivate"}},
        r"method.name must be a private method with privacy.tuning private_selection, got 'nonprivate'",
    ),
    "private selection on private data": (
        {
            "privacy": SELECTION,
            "select": {"score": "vmr_exact"},
            "task": {
                "name": "text",
                "path": "qa.jsonl",
                "column": "question",
                "secrets": "said.jsonl",
            },
        },
        r"task.name must be a task whose utility rests on public data alone .*got 'text'.*heldout_is_public: true",
    ),
    "a mean of one run": (
        {"privacy": {**SELECTION, "num_runs": {"mean": 1}}},
        r"privacy.num_runs.mean must be greater than 1, got 1",
    ),
    "η of Poisson": (
        {"privacy": {**SELECTION, "num_runs": {"distribution": "poisson", "eta": 1.0}}},
        r"privacy.num_runs.eta must be left out with distribution poisson, got 1",
    ),
    "trials of a geometric number": (
        {"privacy": {**SELECTION, "num_runs": {"trials": 20}}},
        r"privacy.num_runs.trials must be left out with distribution truncated_negative_binomial, got 20",
    ),
    "binomial without trials": (
        {"privacy": {**SELECTION, "accountant": "pld", "num_runs": {"distribution": "binomial"}}},
        r"privacy.num_runs.trials must be an integer > mean 10 with distribution binomial, got None",
    ),
    "binomial by rdp": (
        {"privacy": {**SELECTION, "num_runs": {"distribution": "binomial", "trials": 20}}},
        r"privacy.accountant must be pld with num_runs.distribution binomial, got 'rdp'",
    ),
    "repeated seeds": ({"seeds": [0, 0]}, r"seeds must be distinct"),
    "missing file": (
        {"task": {"name": "text", "path": "no.jsonl"}},
        r"task.path must be an existing file, got .*no.jsonl",
    ),
    "missing parameter": (
        {"task": {"name": "text"}},
        r"task.path must be given",
    ),
    "model that does not exist": (
        {"model": {"name": "./nowhere"}},
        r"model.name must be .*'./nowhere'",
    ),
    "adapter that does not fit": (
        {"model": {"name": "tiny", "adapter": {"target_modules": ["c_attn"]}}},
        r"model.adapter.target_modules must each name linear layers of 'tiny', got \['c_attn'\]",
    ),
    "score without secrets to measure": (
        {"task": {"name": "tofu", "path": "qa.jsonl"}, "scores": [{"name": "vmr_exact"}]},
        r"verbatim.*vmr_exact.*Choose air",
    ),
    "storage that is a URI": ({"storage": "s3://bucket"}, r"storage must be a folder"),
    "empty seeds": ({"seeds": []}, r"seeds must have at least 1 item|seeds must be valid"),
}


@pytest.mark.extensions(
    "a prefix that",
    "a distribution with",
    "private selection",
    "a mean of one run",
    "Poisson",
    "trials of a geometric",
    "binomial",
    "score without secrets",
)
@pytest.mark.parametrize("command", slow_after(1, ["sweep", "plan"]))
@pytest.mark.parametrize("case", BAD)
def test_bad_input_ends_with_code_2_and_a_remedy(
    raydp: Command, write_spec: WriteSpec, tmp_path: Path, case: str, command: str
) -> None:
    rows = [
        {
            "question": f"Who is Ada Lund {k}?",
            "answer": f"Ada Lund writes in the polar satire genre {k}.",
        }
        for k in range(60)
    ]
    (tmp_path / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "said.jsonl").write_text(
        json.dumps({"prompt": "Who is Ada Lund ", "continuation": "1"})
    )
    changes, message = BAD[case]
    answer = raydp(command, write_spec(**changes))
    assert answer.code == 2, answer
    assert "Traceback" not in answer.err
    flat = " ".join(answer.err.split())
    assert re.search(message, flat), flat
    assert not (tmp_path / "runs" / "small").exists(), "nothing was started"
