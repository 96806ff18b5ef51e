"""A model whose conversations were written by a template of raydp: the template goes wherever the
model goes."""

from __future__ import annotations

import mlflow
import pandas as pd
import pytest
from transformers import AutoTokenizer

from raydp.extensions.chat.templates import JINJA
from raydp.extensions.publishing.export import export_model
from raydp.models.adapters import attach_adapter, save_trained
from raydp.models.base_models import load_base
from raydp.spec.sections import ModelSpec
from raydp.sweep.engine.trial import with_chat_template
from raydp.tracking.models.loading import load_tokenizer
from raydp.tracking.models.plain import TextGenerator, load_plainly
from raydp.tracking.serving import _load_pyfunc
from tests.marks import slow_after

TURNS = [{"role": "user", "content": "hello"}]
WRITTEN = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


def written(tokenizer) -> str:
    return tokenizer.apply_chat_template(TURNS, tokenize=False, add_generation_prompt=True)


@pytest.mark.parametrize("kind", slow_after(1, ["lora", "none"]))
def test_the_template_goes_wherever_the_model_goes(kind, tracker, record, tmp_path) -> None:
    spec = ModelSpec.model_validate({"name": "tiny", "adapter": {"type": kind}})
    base = load_base(spec)
    tokenizer = with_chat_template(base.tokenizer, JINJA["chatml"])
    save_trained(
        attach_adapter(base, spec.adapter), tokenizer, tmp_path / "saved", own_tokenizer=True
    )
    facts = {"name": "tiny", "weight_hash": base.weight_hash, "dtype": spec.weight_dtype}
    uri = tracker.log_trial(record(base=facts, model_dir=tmp_path / "saved"))
    store = tracker.store.uri
    assert written(load_tokenizer(uri, tracking_uri=store)) == WRITTEN
    folders = {"plain": export_model(uri, tmp_path / "plain", tracking_uri=store)}
    if kind == "lora":
        folders["merged"] = export_model(uri, tmp_path / "merged", tracking_uri=store, merge=True)
    for folder in folders.values():
        assert written(AutoTokenizer.from_pretrained(folder)) == WRITTEN
        assert (
            written(AutoTokenizer.from_pretrained(folder / "components" / "tokenizer")) == WRITTEN
        )
        assert (
            "`tokenizer.apply_chat_template(messages, tokenize=False"
            in (folder / "README.md").read_text()
        )
        assert (
            "apply_chat_template"
            in mlflow.models.Model.load(str(folder)).signature.params.to_json()
        )
        for loaded in (_load_pyfunc(str(folder)), load_plainly(folder, {})):
            assert written(loaded.tokenizer) == WRITTEN
            assert said(loaded, "hello", apply_chat_template=True) == said(loaded, WRITTEN)
            assert said(loaded, "hello", apply_chat_template=True) != said(loaded, "hello")


def said(model: TextGenerator, prompt: str, **params: bool) -> list[str]:
    return model.predict(pd.DataFrame({"prompt": [prompt]}), {"max_new_tokens": 8, **params})
