"""Log-probability and its contrast with control secrets."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model

from raydp.models.base_models import LoadedModel
from raydp.scores.language.teacher_forcing import log_probabilities
from raydp.scores.memorisation.logprob import LogProbability, contrast_of_twins
from raydp.tasks.task import Secret
from raydp.tasks.text.builtin import BuiltinTask
from raydp.tasks.wrappers.planted_task import PlantedTask
from raydp.testing.models import llama
from raydp.testing.secrets import made_up_secrets, make_task
from tests.builders.models import bigram
from tests.builders.specs import SMALL_TASK

SECRETS = made_up_secrets("verbatim", 5, seed=0)
CONTROLS = made_up_secrets("verbatim", 7, seed=1)


def reference(model: LoadedModel, secret: Secret) -> float:
    """transformers' own loss on s2's tokens, mean turned into a sum."""
    prompt = model.tokenizer(secret.prompt).input_ids
    target = model.tokenizer(secret.continuation, add_special_tokens=False).input_ids
    with torch.no_grad():
        labels = torch.tensor([[-100] * len(prompt) + target])
        loss = model.model(input_ids=torch.tensor([prompt + target]), labels=labels).loss
    return -float(loss) * len(target)


@pytest.fixture(scope="module")
def trained(tokenizer) -> LoadedModel:
    """A LoRA model whose adapter changes every logit."""
    config = LoraConfig(
        r=2, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM"
    )
    model = get_peft_model(llama(len(tokenizer)), config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.2, generator=generator)
    return LoadedModel(model=model, tokenizer=tokenizer)


def test_plain_sum_is_the_negative_loss_of_transformers(untrained):
    """In one batch, prompts and continuations of different lengths."""
    others = [
        Secret(prompt="x", continuation="1", number=98),
        Secret(prompt="a longer prompt: ", continuation="and its rest", number=99),
    ]
    measured = LogProbability(contrast=False).measure(
        untrained, make_task([*SECRETS, *others]), seed=0
    )
    expected = {secret.name: reference(untrained, secret) for secret in (*SECRETS, *others)}
    assert measured.per_secret == pytest.approx(expected, rel=1e-5)  # fp32 logits
    assert measured.value == pytest.approx(np.mean(list(expected.values())), rel=1e-5)
    assert measured.num_samples == 1


def test_contrast_is_the_secrets_gain_minus_the_controls_gain(trained, untrained):
    """By hand; the untrained model has the base weights of the trained one."""
    gains = {s.name: reference(trained, s) - reference(untrained, s) for s in (*SECRETS, *CONTROLS)}
    ours, theirs = (np.array([gains[s.name] for s in group]) for group in (SECRETS, CONTROLS))
    measured = LogProbability().measure(trained, make_task(SECRETS, CONTROLS), seed=0)
    assert np.abs(ours).min() > 1e-2, "an adapter that does nothing would test nothing"
    assert measured.value == pytest.approx(
        ours.mean() - theirs.mean(), abs=1e-3
    )  # sums of fp32 losses of size 30
    assert measured.std_error == pytest.approx(
        np.sqrt(ours.var(ddof=1) / 5 + theirs.var(ddof=1) / 7), abs=1e-3
    )
    expected = {s.name: gains[s.name] - theirs.mean() for s in SECRETS}
    assert measured.per_secret == pytest.approx(expected, abs=1e-3)
    assert list(measured.per_control) == [f"control-{number:03d}" for number in range(1, 8)]
    assert list(measured.per_control.values()) == pytest.approx(theirs, abs=1e-3)


def test_contrast_of_the_base_model_with_itself_is_0(untrained):
    measured = LogProbability().measure(untrained, make_task(SECRETS, CONTROLS), seed=0)
    assert measured.value == 0
    assert measured.std_error == 0


def test_the_base_model_is_read_once_for_all_models_and_again_for_other_texts(trained, monkeypatch):
    read: list[bool] = []
    monkeypatch.setattr(
        "raydp.scores.memorisation.logprob.log_probabilities",
        lambda model, secrets: (read.append(model.is_base), log_probabilities(model, secrets))[1],
    )
    model = replace(trained, base_results={})
    measured = [
        LogProbability().measure(model, make_task(SECRETS, CONTROLS), seed=seed) for seed in (0, 1)
    ]
    assert measured[0] == measured[1]
    assert read == [False, True, False]
    fewer = LogProbability().measure(model, make_task(SECRETS, CONTROLS[:3]), seed=0)
    assert read == [False, True, False, False, True]
    assert fewer == LogProbability().measure(
        replace(trained, base_results={}), make_task(SECRETS, CONTROLS[:3]), seed=0
    )


def test_learning_of_the_format_cancels_out(tokenizer):
    """A model that learns that digits follow gains on secrets and controls alike."""
    digits = "0123456789"
    before = bigram({}, tokenizer)
    after = bigram({(a, b): 0.099 for a in (*digits, "Ġ") for b in digits}, tokenizer)
    model = LoadedModel(
        model=after.model,
        tokenizer=tokenizer,
        base_weights={"lm_head.weight": before.model.lm_head.weight.data},
    )
    measured = LogProbability().measure(model, make_task(SECRETS, CONTROLS), seed=0)
    plain = log_probabilities(model, SECRETS) - log_probabilities(before, SECRETS)
    assert plain.mean() > 10, "four digits at 0.099 instead of 1/258 each: 4 ln 25.5 = 13 nats"
    assert measured.value == pytest.approx(0, abs=1e-3)


def test_standard_error_needs_two_controls(trained):
    measured = LogProbability().measure(trained, make_task(SECRETS, CONTROLS[:1]), seed=0)
    assert measured.std_error is None


def test_contrast_without_controls_is_refused():
    with pytest.raises(ValueError, match=r"Give task.controls, or set contrast: false\."):
        LogProbability().check(make_task(SECRETS))
    with pytest.raises(ValueError, match="must contain kind 'verbatim'"):
        LogProbability().check(make_task(SECRETS, made_up_secrets("attribute", 2, seed=0)))
    assert LogProbability(contrast=False).check(make_task(SECRETS)) is None


def test_verbatim_secrets_come_before_attributes(untrained):
    mixed = [*made_up_secrets("attribute", 2, seed=0), *SECRETS]
    measured = LogProbability(contrast=False).measure(untrained, make_task(mixed), seed=0)
    assert list(measured.per_secret) == [secret.name for secret in SECRETS]


@pytest.mark.parametrize(
    ("prompt", "value"), [("who likes", "red"), ("who likes ", "red"), ("who likes", " red")]
)
def test_an_attribute_follows_its_prompt_after_one_space(untrained, prompt, value):
    secret = Secret(prompt=prompt, continuation=value, kind="attribute")
    measured = LogProbability(contrast=False).measure(untrained, make_task([secret]), seed=0)
    joined = f"{prompt}{value}" if " " in (prompt[-1], value[0]) else f"{prompt} {value}"
    cut = len(prompt)
    expected = reference(untrained, Secret(prompt=joined[:cut], continuation=joined[cut:]))
    assert list(measured.per_secret.values()) == pytest.approx([expected], rel=1e-5)


def test_a_diverged_model_is_named(tokenizer):
    model = llama(len(tokenizer))
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="log-probabilities must be finite, got nan"):
        LogProbability(contrast=False).measure(
            LoadedModel(model=model, tokenizer=tokenizer), make_task(SECRETS), seed=0
        )


def pairs_of(differences: np.ndarray) -> np.ndarray:
    """Two texts of each pair with these differences, at levels that must not matter."""
    levels = np.random.default_rng(9).normal(0, 5, len(differences))
    return np.column_stack([differences + levels, levels])


def test_the_contrast_of_twins_is_a_regression_on_the_base_model() -> None:
    """Against ordinary least squares by another route: the intercept, and its standard error."""
    rng = np.random.default_rng(0)
    untrained = rng.normal(0, 3, 40)
    differences = 1.5 + 0.3 * untrained + rng.normal(0, 0.5, 40)
    contrasts, variance = contrast_of_twins(pairs_of(differences), pairs_of(untrained))
    design = np.column_stack([np.ones(40), untrained])
    (intercept, slope), (rss,), *_ = np.linalg.lstsq(design, differences, rcond=None)
    assert contrasts.mean() == pytest.approx(intercept)
    np.testing.assert_allclose(contrasts, differences - slope * untrained)
    assert variance == pytest.approx(rss / 38 / 40)


def test_few_twins_are_contrasted_by_their_gains() -> None:
    differences, untrained = np.array([1.0, 2.0, 4.0]), np.array([0.5, -0.5, 0.0])
    contrasts, variance = contrast_of_twins(pairs_of(differences), pairs_of(untrained))
    np.testing.assert_allclose(contrasts, differences - untrained)
    assert variance == pytest.approx((differences - untrained).var(ddof=1) / 3)
    assert math.isnan(contrast_of_twins(pairs_of(differences[:1]), pairs_of(untrained[:1]))[1])


def test_the_contrast_with_more_controls_is_a_regression_with_an_effect_of_each_pair() -> None:
    """Against ordinary least squares on indicators of the pairs, of being planted, and the base
    model's values."""
    rng = np.random.default_rng(3)
    untrained = rng.normal(0, 3, (12, 5))
    trained = 0.4 * untrained + rng.normal(0, 2, (12, 1)) + rng.normal(0, 1, (12, 5))
    trained[:, 0] += 1.5
    contrasts, variance = contrast_of_twins(trained, untrained)
    planted = np.tile([1.0, 0, 0, 0, 0], 12)
    design = np.column_stack([planted, untrained.ravel(), np.repeat(np.eye(12), 5, axis=0)])
    effect, slope, *_ = np.linalg.lstsq(design, trained.ravel(), rcond=None)[0]
    assert contrasts.mean() == pytest.approx(effect)
    differences = (v[:, 0] - v[:, 1:].mean(axis=1) for v in (trained, untrained))
    np.testing.assert_allclose(contrasts, next(differences) - slope * next(differences))
    assert variance == pytest.approx(contrasts.var(ddof=1) / 12 * 11 / 10)


@pytest.mark.parametrize("controls", [1, 5])
def test_without_a_leak_the_bias_of_skewed_texts_that_training_bends_is_small(
    controls: int,
) -> None:
    """Twelve pairs, log-probabilities with a long tail, and a trained model that is no line of the
    base model."""
    rng = np.random.default_rng(4)
    means = []
    for _ in range(4000):
        base = -rng.gamma(2, 2, (12, 1 + controls))
        trained = -0.05 * base**2 + rng.normal(0, 0.5, base.shape)
        means.append(contrast_of_twins(trained, base)[0].mean())
    assert abs(np.mean(means)) < 0.08 * np.std(means)


@pytest.mark.parametrize("leak", [0.0, 0.7])
def test_more_controls_estimate_the_same_contrast_with_a_true_and_smaller_error(
    leak: float,
) -> None:
    """Texts drawn alike, of which one of each pair has the leak: the mean over absent texts is
    contrasted."""
    rng = np.random.default_rng(2)
    errors = {}
    for controls in (1, 9):
        means, variances = [], []
        for _ in range(2000):
            base = rng.standard_t(5, (40, 1 + controls)) * 2
            trained = 0.8 * base + rng.standard_t(5, (40, 1 + controls))
            trained[:, 0] += leak
            contrasts, variance = contrast_of_twins(trained, base)
            means.append(contrasts.mean())
            variances.append(variance)
        assert abs(np.mean(means) - leak) < 4 * np.std(means) / math.sqrt(2000)
        assert np.mean(variances) == pytest.approx(np.var(means), rel=0.15)
        errors[controls] = np.std(means)
    assert errors[9] / errors[1] == pytest.approx(math.sqrt((1 + 1 / 9) / 2), rel=0.1)


def test_each_planted_twin_is_contrasted_with_the_mean_of_its_absent_texts(
    trained: LoadedModel, tokenizer
) -> None:
    """Against the definition, from the log-probability of every single text."""
    section = {"of": SMALL_TASK, "copies": {2: 12}, "twins": True, "own_secrets": False}
    task = PlantedTask.model_validate(section).build(tokenizer).for_seed(3)
    absent = task.absent(4)

    def of_texts(model: LoadedModel) -> np.ndarray:
        pairs = [(twin, *texts) for (twin, _), texts in zip(task.pairs(), absent, strict=True)]
        return np.array([[reference(model, text) for text in texts] for texts in pairs])

    after = of_texts(trained)
    with trained.base() as base:
        before = of_texts(base)
    contrasts, variance = contrast_of_twins(after, before)
    measured = LogProbability(controls_per_pair=4).measure(trained, task, seed=0)
    np.testing.assert_allclose(list(measured.per_secret.values()), contrasts, rtol=1e-3, atol=1e-3)
    assert measured.std_error == pytest.approx(math.sqrt(variance), rel=1e-3)


def test_finer_asks_for_as_many_controls_as_there_are(tokenizer) -> None:
    def finer(score: LogProbability, **options: object) -> int | None:
        section = {"of": SMALL_TASK, "copies": {2: 12}, "twins": True, **options}
        found = score.finer(PlantedTask.model_validate(section).build(tokenizer))
        return None if found is None else found.controls_per_pair

    assert finer(LogProbability()) == 5
    assert finer(LogProbability(), num_digits=2, copies={2: 20}) == 1 + (100 - 40) // 20
    assert finer(LogProbability(controls_per_pair=5)) is None
    assert finer(LogProbability(contrast=False)) is None
    assert finer(LogProbability(), copies={2: 5}, num_digits=1) is None
    assert LogProbability().finer(make_task(SECRETS, CONTROLS)) is None


def test_more_controls_than_there_are_are_refused(tokenizer) -> None:
    section = {"of": SMALL_TASK, "copies": {2: 12}, "twins": True, "num_digits": 2}
    task = PlantedTask.model_validate(section).build(tokenizer)
    with pytest.raises(ValueError, match=r"at most 7, got 9, with so many pairs\. Plant fewer"):
        LogProbability(controls_per_pair=9).check(task)
    with pytest.raises(
        ValueError, match=r"at most 1, got 9, without twins of the task `planted`\. Remove it"
    ):
        LogProbability(controls_per_pair=9).check(make_task(SECRETS, CONTROLS))
    with pytest.raises(ValueError, match="controls_per_pair must be 1 without contrast, got 9"):
        LogProbability(controls_per_pair=9, contrast=False).check(task)


@pytest.mark.parametrize("slope", [0.0, 0.4, 1.0])
def test_without_a_leak_the_contrast_of_twins_is_zero_and_its_error_is_true(slope: float) -> None:
    """Coins decide which twin counts as present; nothing else differs.

    The mean over many draws of coins is 0.
    """
    rng = np.random.default_rng(1)
    base = rng.standard_t(4, (30, 2)) * 3
    trained = slope * base + rng.standard_t(4, (30, 2))
    means, variances = [], []
    for _ in range(2000):
        signs = rng.choice([-1.0, 1.0], 30)
        swapped = [np.where(signs[:, None] < 0, texts[:, ::-1], texts) for texts in (trained, base)]
        contrasts, variance = contrast_of_twins(*swapped)
        means.append(contrasts.mean())
        variances.append(variance)
    assert abs(np.mean(means)) < 4 * np.std(means) / math.sqrt(2000)
    assert np.mean(variances) == pytest.approx(np.var(means), rel=0.15)


def test_secrets_are_contrasted_with_controls_and_twins_with_each_other(
    trained: LoadedModel, tokenizer
) -> None:
    section = {"of": SMALL_TASK, "copies": {2: 12}, "twins": True}
    task = PlantedTask.model_validate(section).build(tokenizer).for_seed(3)
    alone = (
        PlantedTask.model_validate({**section, "own_secrets": False}).build(tokenizer).for_seed(3)
    )
    own = BuiltinTask(
        num_examples=SMALL_TASK["num_examples"], num_heldout=SMALL_TASK["num_heldout"]
    ).build(tokenizer)
    both, twins, secrets = (
        LogProbability().measure(trained, t, seed=0) for t in (task, alone, own)
    )
    values = list(both.per_secret.values())
    rounding = {"rtol": 1e-4, "atol": 1e-4}  # fp32 logits, in batches of other secrets
    np.testing.assert_allclose(values[:24], list(secrets.per_secret.values()), **rounding)
    np.testing.assert_allclose(
        values[24:], [twins.per_secret[f"secret-{k:03d}"] for k in range(41, 53)], **rounding
    )
    weights = np.array([24, 12]) / 36
    assert both.value == pytest.approx(weights @ [secrets.value, twins.value], abs=1e-4)
    assert both.std_error == pytest.approx(
        math.hypot(*(weights * [secrets.std_error, twins.std_error])), abs=1e-4
    )
