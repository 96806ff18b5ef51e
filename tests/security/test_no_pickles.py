"""Nothing that is loaded runs code: no call in the source that would, and no planted pickle that
does."""

from __future__ import annotations

import ast
import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raydp.models import base_models as models
from raydp.spec.sections import ModelSpec
from raydp.tracking.models.loading import load_folder
from raydp.training.checkpoint import CheckpointStore
from tests.conftest import Answer

ROOT = Path(__file__).parents[2]
ROOMS = ("raydp", "analysis", "search_spaces")
SUITES = ROOT / "raydp/testing"
"""The suites send objects that they made through pickle, as Ray does. They read no file."""

UNPICKLERS = {
    "pickle",
    "_pickle",
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "shelve",
    "jsonpickle",
}
HARMLESS = {"from joblib import cpu_count"}
"""Imports from a library that unpickles, of a function that reads no file."""
FORBIDDEN = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "os.system",
    "os.popen",
    "yaml.unsafe_load",
    "yaml.full_load",
}
MUST_SAY = {"torch.load": ("weights_only", True), "np.load": ("allow_pickle", False)}
NEVER = {
    "shell": True,
    "trust_remote_code": True,
    "verify": False,
    "allow_pickle": True,
    "weights_only": False,
}


def offences(tree: ast.AST) -> Iterator[str]:
    """What a source does that could run what it reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and ast.unparse(node) not in HARMLESS:
            modules = (
                [a.name for a in node.names] if isinstance(node, ast.Import) else [str(node.module)]
            )
            yield from (f"imports {m}" for m in modules if m.split(".")[0] in UNPICKLERS)
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        given = {k.arg: getattr(k.value, "value", ...) for k in node.keywords}
        if called in FORBIDDEN or called.endswith(("read_pickle", "Tuner.restore")):
            yield f"calls {called}"
        if called in MUST_SAY and given.get(MUST_SAY[called][0]) is not MUST_SAY[called][1]:
            yield f"calls {called} without {MUST_SAY[called]}"
        if called == "yaml.load" and not _is_safe_loader(node):
            yield "calls yaml.load with another loader"
        loads = called.endswith(".from_pretrained") and "AutoModel" in called
        if loads and given.get("use_safetensors") is not True and "gguf_file" not in given:
            yield f"calls {called} without use_safetensors"
        yield from (
            f"says {name}={bad} to {called}"
            for name, bad in NEVER.items()
            if given.get(name, ...) is bad
        )


def _is_safe_loader(call: ast.Call) -> bool:
    """PyYAML's safe one, or ours, which is derived from it."""
    return any(
        k.arg == "Loader" and ast.unparse(k.value) in ("yaml.SafeLoader", "_Loader")
        for k in call.keywords
    )


@pytest.mark.parametrize("room", ROOMS)
def test_no_source_loads_pickles_or_remote_code(room: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {offence}"
        for path in (ROOT / room).rglob("*.py")
        if SUITES not in path.parents
        for offence in offences(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "import pickle", "from joblib import load", "torch.load(p)", "torch.load(p, weights_only=False)", "np.load(p)",
        "yaml.load(t, Loader=yaml.Loader)", "yaml.load(t)", "eval(t)", "subprocess.run(c, shell=True)",
        "pd.read_pickle(p)",
        "AutoModel.from_pretrained(n, use_safetensors=True, trust_remote_code=True)", "requests.get(u, verify=False)",
        "AutoModelForCausalLM.from_pretrained(n)", "os.system(c)", "Tuner.restore(p)",
    ],
)  # fmt: skip
def test_the_scan_sees_them(source: str) -> None:
    assert list(offences(ast.parse(source)))


def test_our_yaml_loader_is_a_safe_one() -> None:
    import yaml

    from raydp.system.yaml import _Loader

    assert issubclass(_Loader, yaml.SafeLoader)


class Harm:
    """Unpickled, it leaves a file behind."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[Path]:
    """Where harm would leave its mark; it did not."""
    yield tmp_path / "harmed"
    assert not (tmp_path / "harmed").exists(), "a pickle was loaded"


def plant(folder: Path, marker: Path, *names: str) -> None:
    """As torch.save writes it, and as a bare pickle."""
    folder.mkdir(exist_ok=True)
    for number, name in enumerate(names):
        if number % 2:
            (folder / name).write_bytes(pickle.dumps(Harm(marker)))
        else:
            torch.save({"lm_head.weight": Harm(marker)}, folder / name)


def test_the_planted_pickle_does_harm_where_it_is_loaded(tmp_path: Path) -> None:
    for name in ("a", "b"):
        plant(tmp_path / name, tmp_path / name / "harmed", "x", "y")
    with (tmp_path / "b" / "y").open("rb") as stream:
        pickle.load(stream)
    torch.load(tmp_path / "a" / "x", weights_only=False)
    assert (tmp_path / "a" / "harmed").exists()
    assert (tmp_path / "b" / "harmed").exists()


PICKLES = [
    "pytorch_model.bin",
    "training_args.bin",
    "adapter_model.bin",
    "optimizer.pt",
    "model.pt",
    "tokenizer.pkl",
]


def test_a_base_model_of_pickles_alone_is_refused(tmp_path: Path, marker: Path) -> None:
    folder = tmp_path / "base"
    shutil.copytree(models.TINY, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    for bins in (["pytorch_model.bin"], ["model.safetensors"], ["x", "model.safetensors"]):
        (folder / "model.safetensors").unlink(missing_ok=True)
        plant(folder, marker, *bins)
        with pytest.raises(ValueError, match=r"model.name must"):
            models.load_base(ModelSpec(name=str(folder)))


def test_pickles_beside_a_base_model_are_left_alone(tmp_path: Path, marker: Path) -> None:
    folder = tmp_path / "base"
    shutil.copytree(models.TINY, folder)
    plant(folder, marker, *PICKLES)
    models.check(ModelSpec(name=str(folder)))
    assert models.load_base(ModelSpec(name=str(folder))).weight_hash == models.weight_hash(
        models.TINY
    )


def test_code_beside_a_base_model_is_never_run(tmp_path: Path, marker: Path) -> None:
    """What trust_remote_code would run; nothing in raydp asks for it."""
    folder = tmp_path / "base"
    shutil.copytree(models.TINY, folder)
    code = f"import os\nos.mkdir({str(marker)!r})\nclass C: pass\n"
    (folder / "own.py").write_text(code)
    config = json.loads((folder / "config.json").read_text())
    kinds = {
        "AutoConfig": "own.C",
        "AutoModelForCausalLM": "own.C",
        "AutoTokenizer": ["own.C", "own.C"],
    }
    (folder / "config.json").write_text(
        json.dumps({**config, "model_type": "of_its_own", "auto_map": kinds})
    )
    with pytest.raises(ValueError, match=r"model.name must be a causal language model"):
        models.check(ModelSpec(name=str(folder)))
    with pytest.raises(ValueError, match=r"model.name must be a causal language model"):
        models.load_base(ModelSpec(name=str(folder)))


WEIGHTS = "adapter_model.safetensors"


@pytest.mark.parametrize("planted", [["adapter_model.bin"], [WEIGHTS], ["x", WEIGHTS]])
def test_an_adapter_of_pickles_is_refused(planted: list[str], tmp_path: Path, marker: Path) -> None:
    folder = tmp_path / "adapter"
    plant(folder, marker, *planted)
    base = models.load_base(ModelSpec(name="tiny"))
    config = {
        "peft_type": "LORA",
        "r": 2,
        "lora_alpha": 4,
        "target_modules": ["q_proj"],
        "task_type": "CAUSAL_LM",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    record = {"name": "tiny", "weight_hash": base.weight_hash, "dtype": "float32"}
    (folder / "base.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match=r"MODEL must hold"):
        load_folder(folder)


def test_a_trained_model_of_pickles_is_refused(tmp_path: Path, marker: Path) -> None:
    folder = tmp_path / "full"
    shutil.copytree(models.TINY, folder)
    (folder / "base.json").write_text(
        json.dumps({"name": "tiny", "weight_hash": "", "dtype": "float32"})
    )
    for names in (["x", "model.safetensors"], ["pytorch_model.bin"]):
        (folder / "model.safetensors").unlink()
        plant(folder, marker, *names)
        with pytest.raises(ValueError, match=r"MODEL must hold"):
            load_folder(folder)
        (folder / "model.safetensors").touch()


@pytest.mark.parametrize("torch_saved", [True, False])
def test_a_checkpoint_that_is_a_pickle_is_passed_over(
    torch_saved: bool, tmp_path: Path, marker: Path
) -> None:
    warnings: list[str] = []
    store = CheckpointStore(folder=tmp_path / "checkpoints", run_id="r", warn=warnings.append)
    store.save(1, {"w": torch.ones(2)}, {"losses": [1.0]})
    names = ["step-00000002.safetensors", "step-00000003.pt"]
    plant(tmp_path / "checkpoints", marker, *(names if torch_saved else ["x", *names[:1]]))
    found = store.load()
    assert found is not None
    assert found[0] == 1
    assert "step-00000002.safetensors of run r is damaged" in warnings[0]


@pytest.mark.extensions
def test_stored_outputs_with_objects_are_refused(
    raydp: Callable[..., Answer], tmp_path: Path, marker: Path
) -> None:
    good = np.full((4, 2), 0.5)
    arrays: dict[str, Any] = {
        f"{m}_{p}_probs": good for m in ("shadow", "target") for p in ("member", "nonmember")
    }
    arrays |= {name.replace("probs", "labels"): np.zeros(4, int) for name in list(arrays)}
    np.savez(
        tmp_path / "outputs.npz",
        **{**arrays, "target_member_labels": np.array([Harm(marker)], dtype=object)},
    )
    (tmp_path / "bare.npz").write_bytes(pickle.dumps(Harm(marker)))
    for name in ("outputs.npz", "bare.npz"):
        answer = raydp("mia", tmp_path / name)
        assert answer.code == 2
        assert "FILE must be an .npz file of numeric arrays" in " ".join(answer.err.split())


def test_a_points_table_that_is_a_pickle_is_refused(
    raydp: Callable[..., Answer], tmp_path: Path, marker: Path
) -> None:
    for name in ("points.csv", "points.parquet"):
        (tmp_path / name).write_bytes(pickle.dumps(Harm(marker)))
        assert raydp("select", tmp_path / name).code == 2
