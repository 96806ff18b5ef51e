"""The embedded model: its shape, what it knows, and that the script beside it is what made it."""

import json
import math
from pathlib import Path

import pytest
import torch
from make_tiny import RECORD, TINY, Recipe, corpus_hash, main, make, train_tokenizer
from safetensors import safe_open

from raydp.models.base_models import load_base
from raydp.scores.language.encoding import encode
from raydp.spec.reading import load_spec
from raydp.spec.sections import ModelSpec
from raydp.tasks.text.builtin import BuiltinTask
from raydp.tasks.text.mails import GENRES, Fact, Person, first_line, public_directory

MAX_BYTES = 500_000


@pytest.fixture(scope="module")
def base():
    return load_base(ModelSpec(name="tiny"))


@pytest.fixture(scope="module")
def corpus():
    return Recipe().mails()


def answers(base, people: tuple[Person, ...], fact: Fact) -> list[tuple[bool, float]]:
    """For each person: whether greedy decoding says the fact, and the fact's probability."""
    found = []
    for person in people:
        prompt, answer = (base.tokenizer(text).input_ids for text in first_line(person, fact))
        with torch.inference_mode():
            logits = base.model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        log_p = logits.log_softmax(-1)[range(len(answer)), answer].sum()
        found.append((logits.argmax(-1).tolist() == answer, float(log_p.exp())))
    return found


def test_shapes_and_number_of_parameters(base):
    config = base.model.config
    assert (config.model_type, config.hidden_size, config.intermediate_size) == ("llama", 64, 192)
    assert (config.num_hidden_layers, config.num_attention_heads, config.vocab_size) == (2, 2, 768)
    embedding, block = 768 * 64, 4 * 64 * 64 + 3 * 64 * 192 + 2 * 64
    assert sum(p.numel() for p in base.model.parameters()) == embedding + 2 * block + 64 == 155_968
    assert base.model.get_output_embeddings().weight is base.model.get_input_embeddings().weight


def test_files_are_small_half_precision_and_know_no_path():
    files = list(TINY.iterdir())
    assert sum(file.stat().st_size for file in files) < MAX_BYTES
    with safe_open(TINY / "model.safetensors", "pt") as weights:
        assert {weights.get_tensor(name).dtype for name in weights.keys()} == {torch.float16}  # noqa: SIM118
    for file in files:
        if file.suffix == ".json" and file.name != "tokenizer.json":
            strings = [v for v in json.loads(file.read_text()).values() if isinstance(v, str)]
            assert not [s for s in strings if Path(s).is_absolute()]


@pytest.mark.parametrize(
    "text", ["0123456789", "x4821", "ext 77", "7 1999", "From: Ada Adlbach x0000"]
)
def test_digits_are_single_tokens(base, text):
    tokens = base.tokenizer.tokenize(text)
    assert all(len(token) == 1 for token in tokens if any(c.isdigit() for c in token))
    assert sum(token.isdigit() for token in tokens) == sum(c.isdigit() for c in text)


def test_tokenizer_loses_nothing(base):
    text = "Zoë wrote: «naïve» —\n\t42 mails, x0071!  "
    assert base.tokenizer.decode(base.tokenizer(text).input_ids) == text


@pytest.mark.slow
def test_directory_was_learnt(base):
    """Chance is 10^-4 for an extension and 1 in 96 for a genre."""
    for fact, least in (("extension", 0.9), ("genre", 0.6)):
        known = answers(base, public_directory(), fact)
        assert sum(correct for correct, _ in known) / len(known) >= least


def test_private_people_are_unknown(base):
    """A secret's probability before training is about chance, so what a score finds was learnt from
    the mails."""
    task = BuiltinTask().build(base.tokenizer)
    for secrets in (task.secrets(), task.controls()):
        likely = {"verbatim": [], "attribute": []}
        for secret, encoded in zip(secrets, encode(base.tokenizer, secrets), strict=True):
            ids = [*encoded.prompt_ids, *encoded.continuation_ids]
            with torch.inference_mode():
                log_p = (
                    base.model(torch.tensor([ids]))
                    .logits[0, len(encoded.prompt_ids) - 1 : -1]
                    .log_softmax(-1)
                )
            rows = range(len(encoded.continuation_ids))
            likely[secret.kind].append(float(log_p[rows, encoded.continuation_ids].sum().exp()))
        assert sum(likely["verbatim"]) / 24 <= 0.001
        assert sum(likely["attribute"]) / 16 <= 5 / len(GENRES)


def test_recorded_corpus_is_the_one_that_the_generator_writes(corpus):
    """Fails when the generator has changed and the model has not been made again."""
    record = json.loads((TINY / RECORD).read_text())
    recipe = Recipe()
    assert record["corpus_sha256"] == corpus_hash(corpus[0])
    assert {k: record[k] for k in ("num_mails", "batch_size", "learning_rate", "seed")} == {
        "num_mails": recipe.num_mails,
        "batch_size": recipe.batch_size,
        "learning_rate": recipe.learning_rate,
        "seed": recipe.seed,
    }


def test_script_makes_the_shipped_tokenizer(corpus, tmp_path):
    train_tokenizer(corpus[0]).save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_text() == (TINY / name).read_text()


def test_making_is_deterministic_in_its_seed(tmp_path):
    state = torch.random.get_rng_state()
    for folder, seed in (("one", 0), ("two", 0), ("other", 1)):
        make(tmp_path / folder, Recipe(num_mails=320, num_heldout=20, seed=seed))
    one, two, other = (
        (tmp_path / f / "model.safetensors").read_bytes() for f in ("one", "two", "other")
    )
    assert one == two
    assert one != other
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "one").iterdir()} == {0o644}, (
        "readable once installed"
    )
    assert torch.equal(torch.random.get_rng_state(), state), "the global generator is left alone"


@pytest.mark.slow
def test_training_begins_as_that_of_the_shipped_model_did(tmp_path):
    """The first 200 of its 3,750 updates, with their own decay: the loss is that of the code that
    made the model. The tolerance is that of the whole training below."""
    assert math.isclose(
        make(tmp_path, Recipe(num_mails=3_200, num_heldout=100)), 1.4622, abs_tol=0.02
    )


@pytest.mark.thorough
def test_script_makes_the_shipped_model_again(tmp_path, capsys):
    """Within 0.02 nats of the recorded loss: another processor sums in another order, and 3,750
    updates spread that."""
    main(["--out", str(tmp_path)])
    record = json.loads((TINY / RECORD).read_text())
    again = json.loads((tmp_path / RECORD).read_text())
    assert math.isclose(again["heldout_nll"], record["heldout_nll"], abs_tol=0.02)
    assert f"held-out loss {again['heldout_nll']:.4f}" in capsys.readouterr().out


def test_demo_is_a_valid_spec_of_18_configurations_with_pairs_of_equal_compute():
    spec = load_spec(TINY.parent / "demo.yaml")
    assert (spec.task.name, spec.task.params, spec.model.name) == ("builtin", BuiltinTask(), "tiny")
    compute = [b * t for b in spec.space.batch_size for t in spec.space.num_steps]
    assert len(compute) * len(spec.space.learning_rate) == 18
    assert len(set(compute)) == len(compute) - 2, (
        "otherwise the compute heuristic has nothing to compare"
    )
