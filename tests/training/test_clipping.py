"""The clipped sum equals clipping of autograd's own per-example gradients, for every supported kind
of layer."""

from __future__ import annotations

from collections import UserDict

import pytest
import torch
from peft import LoraConfig, PrefixTuningConfig, PromptTuningConfig, get_peft_model
from torch import nn
from transformers import FalconConfig, FalconForCausalLM

from raydp.models.adapters import attach_adapter, trainable_parameters
from raydp.models.peft_layers import NarrowLinear
from raydp.models.pretrained import PretrainedModel
from raydp.models.quantization import quantise
from raydp.selftest.odd_layers import with_odd_layers
from raydp.spec.sections import AdapterSpec
from raydp.tasks.task import Batch
from raydp.tasks.text.token_loss import IGNORE, token_nll
from raydp.training.gradients import clipping, layers
from raydp.training.gradients.clipping import ClippedGradients
from raydp.training.gradients.memory import recompute_layers
from raydp.training.gradients.thresholds import AutomaticClipping, Clipping
from tests.builders.models import plain_gpt2, plain_llama
from tests.marks import slow_after

pytestmark = pytest.mark.extensions("nf4", "int8", "soft prompt", "prefix")

# relative error in the L2 norm over all parameters: the project's own bound for clipping
TOLERANCE = 1e-5


def llama(*, tied: bool, seed: int = 0, **options: int) -> nn.Module:
    return plain_llama(
        seed=seed, vocab_size=53, intermediate_size=40, tie_word_embeddings=tied, **options
    )


def gpt2() -> nn.Module:
    return plain_gpt2(vocab_size=53, n_positions=32)


def lora() -> nn.Module:
    model = llama(tied=True)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        config = LoraConfig(r=3, lora_alpha=5, target_modules=targets)
        config._register_custom_module({nn.Linear: NarrowLinear})
        model = get_peft_model(model, config).eval()
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter, std=0.3)
    return model


def soft_prompt(model: nn.Module, kind: type = PromptTuningConfig, scale: float = 5) -> nn.Module:
    """With virtual tokens of the size of the model's own, and weights of a size at which attention
    to them matters."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        model = get_peft_model(model, kind(num_virtual_tokens=3, task_type="CAUSAL_LM")).eval()
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(scale)
        nn.init.normal_(model.prompt_encoder.default.embedding.weight, std=0.05)
    return model


def prefix(model: nn.Module, scale: float = 5) -> nn.Module:
    return soft_prompt(model, PrefixTuningConfig, scale)


def odd() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return with_odd_layers(llama(tied=True))


def adapted(model: nn.Module, adapter: AdapterSpec, quantization: str | None = None) -> nn.Module:
    """With an adapter that is not at its start, as a sweep attaches it."""
    base = PretrainedModel(
        name="random", model=model, tokenizer=None, weight_hash="", quantization=quantization
    )
    quantise(base)
    attached = attach_adapter(base, adapter)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in trainable_parameters(attached, adapter).values():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return attached.eval()


MODELS = {
    "lora": lora,
    "ia3": lambda: adapted(llama(tied=True), AdapterSpec(type="ia3")),
    "bitfit": lambda: adapted(gpt2(), AdapterSpec(type="bitfit")),
    "dora": lambda: adapted(
        llama(tied=True), AdapterSpec(r=3, use_dora=True, target_modules="all-linear")
    ),
    "lora on nf4": lambda: adapted(llama(tied=True), AdapterSpec(r=2), "nf4"),
    "lora on int8": lambda: adapted(llama(tied=True), AdapterSpec(r=2), "int8"),
    "lora and lm_head": lambda: adapted(
        llama(tied=True), AdapterSpec(r=2, modules_to_save=("lm_head",))
    ),
    "soft prompt": lambda: soft_prompt(llama(tied=True)),
    "soft prompt, positions": lambda: soft_prompt(gpt2()),
    "prefix": lambda: prefix(llama(tied=True)),
    "prefix, grouped heads": lambda: prefix(llama(tied=False, num_key_value_heads=1, head_dim=12)),
    "prefix, positions": lambda: prefix(gpt2(), scale=15),
    "full, tied, layers without a rule": odd,
    "full, tied": lambda: llama(tied=True),
    "full, untied": lambda: llama(tied=False),
    "gpt2: Conv1D, LayerNorm, positions, tied": gpt2,
}


def batch_of(size: int, width: int, seed: int = 3) -> Batch:
    """Random tokens, one repeated often, with rows of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 53, (size, width), generator=generator)
    ids[:, ::3] = 7
    labels = ids.clone()
    for row in range(size):
        labels[row, width - row % (width - 2) :] = IGNORE
    return Batch(input_ids=ids, labels=labels)


def losses(model: nn.Module, batch: Batch) -> torch.Tensor:
    counts = (batch.labels[:, 1:] != IGNORE).sum(dim=1)
    return token_nll(model, batch).sum(dim=1) / counts


def reference(
    model: nn.Module,
    parameters: dict[str, nn.Parameter],
    batch: Batch,
    c: float,
    decay: float = 0.0,
) -> dict[str, torch.Tensor]:
    """One backward pass per example, each gradient clipped by its norm over all parameters, in
    float64."""
    total = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in parameters.items()}
    for row in range(len(batch.input_ids)):
        one = Batch(input_ids=batch.input_ids[row : row + 1], labels=batch.labels[row : row + 1])
        grads = torch.autograd.grad(losses(model, one).sum(), list(parameters.values()))
        grads = [
            g.double() + decay * p.detach().double()
            for g, p in zip(grads, parameters.values(), strict=True)
        ]
        norm = torch.sqrt(sum(g.square().sum() for g in grads))
        norm = norm.clamp(
            min=decay
            * torch.sqrt(sum(p.detach().double().square().sum() for p in parameters.values()))
        )
        for name, g in zip(parameters, grads, strict=True):
            total[name] += g * min(1.0, c / norm.item())
    return total


def relative_error(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    difference = sum((actual[n].double() - expected[n]).square().sum() for n in expected)
    return float(torch.sqrt(difference / sum(g.square().sum() for g in expected.values())))


@pytest.mark.parametrize(
    "max_grad_norm", [0.05, 1.0, 1e3], ids=["all clipped", "some clipped", "none clipped"]
)
@pytest.mark.parametrize("width", slow_after(1, [4, 24]))
@pytest.mark.parametrize("kind", MODELS)
def test_equals_clipped_autograd(kind: str, width: int, max_grad_norm: float) -> None:
    model = MODELS[kind]()
    parameters = {n: p for n, p in sorted(model.named_parameters()) if p.requires_grad}
    batch = batch_of(5, width)
    expected = reference(model, parameters, batch, max_grad_norm)
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    ClippedGradients(model, parameters, Clipping(max_grad_norm)).accumulate(
        lambda: losses(model, batch), total
    )
    assert relative_error(total, expected) <= TOLERANCE
    assert all(p.requires_grad for p in parameters.values()), "parameters are left as they were"


@pytest.mark.parametrize("examples_per_unit", [1, 3])
@pytest.mark.parametrize("kind", [*MODELS, "outputs changed in place"])
def test_layers_that_are_computed_again_give_the_same_sum(
    kind: str, examples_per_unit: int
) -> None:
    sums = []
    for again in (False, True):
        torch.manual_seed(0)
        model = falcon() if kind == "outputs changed in place" else MODELS[kind]()
        if again:
            recompute_layers(model)
        parameters = {n: p for n, p in sorted(model.named_parameters()) if p.requires_grad}
        batch = batch_of(6, 5)
        total = {name: torch.zeros_like(p) for name, p in parameters.items()}
        engine = ClippedGradients(model, parameters, Clipping(0.05))
        engine.accumulate(
            lambda model=model, batch=batch: losses(model, batch), total, examples_per_unit
        )
        sums.append(total)
    assert (
        relative_error(sums[1], {name: own.double() for name, own in sums[0].items()}) <= TOLERANCE
    )
    if examples_per_unit == 1:
        assert relative_error(sums[1], reference(model, parameters, batch, 0.05)) <= TOLERANCE


def falcon() -> nn.Module:
    """A model that adds the attention's output to the output of its MLP's last layer, in place."""
    config = FalconConfig(
        vocab_size=53, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, bias=True, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    return FalconForCausalLM(config).eval()


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_whose_output_is_changed_in_place_is_counted_at_each_use(bias: bool) -> None:
    """The output of a linear layer with bias is a view, which autograd moves in the graph if it is
    changed."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(3, 3, bias=bias)

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            y = self.a(h)
            y += h
            return (torch.tanh(y) + self.a(h)).square().sum(dim=(1, 2))

    torch.manual_seed(0)
    net, h = Net().eval(), torch.randn(4, 5, 3)
    parameters = dict(net.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    ClippedGradients(net, parameters, Clipping(1e3)).accumulate(lambda: net(h), total)
    exact = torch.autograd.grad(net(h).sum(), list(parameters.values()))
    assert (
        relative_error(total, dict(zip(parameters, (g.double() for g in exact), strict=True)))
        <= TOLERANCE
    )


@pytest.mark.parametrize("group_bytes", [1 << 30, 2000], ids=["one group", "several groups"])
@pytest.mark.parametrize("kind", MODELS)
def test_gradients_side_by_side_give_the_same_sum(
    kind: str, group_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, also beside an example whose gradient is not finite."""
    model = MODELS[kind]()
    parameters = {n: p for n, p in sorted(model.named_parameters()) if p.requires_grad}
    batch, broken = batch_of(5, 4), torch.tensor([1, 1, 1, 1, float("nan")])
    engine = ClippedGradients(model, parameters, Clipping(0.05))
    sums, norms = [], []
    for devices in (set(), {"cpu"}):
        monkeypatch.setattr(clipping, "SIDE_BY_SIDE", devices)
        monkeypatch.setattr(clipping, "GROUP_BYTES", group_bytes)
        total = {name: torch.zeros_like(p) for name, p in parameters.items()}
        norms.append(engine.accumulate(lambda: losses(model, batch) * broken, total)[1])
        sums.append(total)
    torch.testing.assert_close(norms[1], norms[0], equal_nan=True)
    assert (
        relative_error(sums[1], {name: value.double() for name, value in sums[0].items()}) <= 1e-6
    )
    assert all(torch.isfinite(value).all() for value in sums[1].values())


@pytest.mark.parametrize(
    "max_grad_norm", [0.05, 1.0, 1e3], ids=["all clipped", "some clipped", "none clipped"]
)
@pytest.mark.parametrize("width", slow_after(1, [4, 24]))
@pytest.mark.parametrize("kind", MODELS)
def test_decay_in_the_loss_is_clipped_with_the_gradient(
    kind: str, width: int, max_grad_norm: float
) -> None:
    model, decay = MODELS[kind](), 0.3
    parameters = {n: p for n, p in sorted(model.named_parameters()) if p.requires_grad}
    batch = batch_of(5, width)
    expected = reference(model, parameters, batch, max_grad_norm, decay)
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    engine = ClippedGradients(model, parameters, Clipping(max_grad_norm), weight_decay=decay)
    engine.accumulate(lambda: losses(model, batch), total)
    assert relative_error(total, expected) <= TOLERANCE


@pytest.mark.parametrize("rule", [Clipping, AutomaticClipping])
@pytest.mark.parametrize("repeats", [1, 20], ids=["written out", "ghost norm"])
@pytest.mark.parametrize("size", [1, 1e4])
def test_many_gradients_that_cancel_their_decay_do_not_hide_one(
    size: float, repeats: int, rule: type[Clipping]
) -> None:
    """Near the optimum a gradient is -λθ and something small.

    1,023 such and one that is clipped: it moves the sum by c, and neither its norm nor the sum of
    the others may be lost in rounding.
    """
    c, width, decay = 0.5, 4, 0.25
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(width, width, bias=False).eval()
    with torch.no_grad():
        layer.weight.copy_(torch.randn(width, width, generator=generator) * size)
    small = torch.nn.functional.normalize(
        torch.randn(width * width, generator=generator), dim=0
    ).view(width, width)

    def factors_of(gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        left, values, right = torch.linalg.svd(gradient)
        # Σ_t g_t x_tᵀ is the gradient
        x, g = (right * values[:, None].sqrt(), left.T * values[:, None].sqrt())
        return x.repeat(repeats, 1), g.repeat(repeats, 1) / repeats

    near = factors_of(-decay * layer.weight.detach() + 0.1 * c * small)
    far = factors_of(-decay * layer.weight.detach() + 3 * c * small)
    engine = ClippedGradients(layer, dict(layer.named_parameters()), rule(c), weight_decay=decay)

    def flat_sum(examples: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        total = {"weight": torch.zeros_like(layer.weight)}
        x, g = (torch.stack(parts) for parts in zip(*examples, strict=True))
        engine.accumulate(lambda: (layer(x) * g).sum(dim=(1, 2)), total)
        return total["weight"]

    many = [near] * 1023
    assert (flat_sum([*many, far]) - flat_sum(many)).norm() <= c * (1 + 1e-2)


@pytest.mark.parametrize("rule", [Clipping, AutomaticClipping])
@pytest.mark.parametrize("kind", MODELS)
def test_one_record_changes_the_sum_by_at_most_the_clipping_norm(
    kind: str, rule: type[Clipping]
) -> None:
    model = MODELS[kind]()
    parameters = {n: p for n, p in sorted(model.named_parameters()) if p.requires_grad}
    batch, c = batch_of(6, 12), 0.1
    engine = ClippedGradients(model, parameters, rule(c))

    def flat_sum(rows: slice) -> torch.Tensor:
        total = {name: torch.zeros_like(p) for name, p in parameters.items()}
        part = Batch(input_ids=batch.input_ids[rows], labels=batch.labels[rows])
        engine.accumulate(
            lambda: 100 * losses(model, part), total
        )  # gradients of a few vectors are small
        return torch.cat([t.flatten() for t in total.values()])

    change = (flat_sum(slice(0, 6)) - flat_sum(slice(0, 5))).norm().item()
    assert (
        0.95 * c <= change <= c * (1 + TOLERANCE)
    )  # automatic clipping leaves norm / (norm + 0.01) of c


@pytest.mark.parametrize("rule", [Clipping, AutomaticClipping])
def test_positions_that_cancel_do_not_hide_an_example(rule: type[Clipping]) -> None:
    """Inner products of 1e4 whose sum is 1e-4 of them: in fp32 the plain ghost norm comes out as 0
    or thereabouts."""
    c, width = 0.5, 64
    generator = torch.Generator().manual_seed(0)
    for magnitude in (1e2, 1e4, 1e6):
        base, offset, direction = (torch.nn.functional.normalize(torch.randn(width, generator=generator), dim=0)
                                   for _ in range(3))  # fmt: skip
        inputs = torch.stack([base * magnitude, base * magnitude + 9e-5 * magnitude * offset])[None]
        layer = nn.Linear(width, width, bias=False).eval()
        weights = torch.stack([direction, -direction])[None]
        total = {"weight": torch.zeros_like(layer.weight)}
        engine = ClippedGradients(layer, dict(layer.named_parameters()), rule(c))
        engine.accumulate(lambda x=inputs, w=weights, m=layer: (m(x) * w).sum(dim=(1, 2)), total)
        assert total["weight"].norm() <= c * (1 + TOLERANCE)


@pytest.mark.parametrize(("width", "unit"), slow_after(1, [(576, 16), (1024, 64)]))
def test_repeated_positions_whose_rounding_repeats_do_not_hide_an_example(
    width: int, unit: int
) -> None:
    """Four shares of the positions have the gradient 3 h, three have -4 h, all with one input: they
    cancel exactly, but the errors of their products are alike and add up. One position more has the
    example's gradient."""
    c = 1.0
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        x, h = (torch.randn(width, generator=generator) for _ in range(2))
        direction = torch.nn.functional.normalize(torch.randn(width, generator=generator), dim=0)
        g = torch.cat(
            [(3 * h).repeat(4 * unit, 1), (-4 * h).repeat(3 * unit, 1), direction[None] * 5]
        )[None]
        inputs = x.repeat(7 * unit + 1, 1)[None]
        layer = nn.Linear(width, width, bias=False).eval()
        total = {"weight": torch.zeros_like(layer.weight)}
        engine = ClippedGradients(layer, dict(layer.named_parameters()), Clipping(c))
        engine.accumulate(lambda x=inputs, g=g, m=layer: (m(x) * g).sum(dim=(1, 2)), total)
        assert total["weight"].norm() <= c * (1 + 1 / (2 * layers.CANCELLED))


def test_the_order_of_sharded_sums_does_not_depend_on_the_lengths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Adding to a sharded sum is collective: ranks with other micro-batches must add in the same
    order."""

    class Sharded(UserDict[str, torch.Tensor]):
        def __setitem__(self, name: str, value: torch.Tensor) -> None:
            order.append(name)
            super().__setitem__(name, value)

    monkeypatch.setattr(clipping, "SIDE_BY_SIDE", {"cpu"})
    model = llama(tied=False)
    parameters = {n: p for n, p in sorted(model.named_parameters()) if p.requires_grad}
    engine = ClippedGradients(model, parameters, Clipping(1.0))
    orders = []
    for width in (4, 40):
        order: list[str] = []
        total = Sharded({name: torch.zeros_like(p) for name, p in parameters.items()})
        order.clear()
        batch = batch_of(3, width)
        engine.accumulate(lambda batch=batch: losses(model, batch), total)
        orders.append(order)
    assert orders[0] == orders[1] == list(parameters)


def test_tokens_that_cancel_do_not_round_away_other_gradients() -> None:
    """An example names one token twice, with gradients that cancel: added unclipped, the first of
    them would push the low bits of 64 examples before it out of single precision, and the sum would
    move by more than c pays for."""
    c, width = 1.0, 64
    layer = nn.Embedding(4, width).eval()
    generator = torch.Generator().manual_seed(0)
    directions = torch.nn.functional.normalize(
        torch.randn(65, 2, width, generator=generator), dim=2
    )
    directions[64, 1] = -directions[64, 0]

    def flat_sum(examples: int) -> torch.Tensor:
        scale = torch.tensor([1.0] * 64 + [1e6])[:examples, None]
        weights = directions[:examples] * scale[:, :, None]
        total = {"weight": torch.zeros_like(layer.weight)}
        engine = ClippedGradients(layer, dict(layer.named_parameters()), Clipping(c))
        ids = torch.zeros(examples, 2, dtype=torch.long)
        engine.accumulate(lambda: (layer(ids) * weights).sum(dim=(1, 2)), total)
        return total["weight"]

    assert (
        flat_sum(65) - flat_sum(64)
    ).norm() <= 1e-4 * c  # its own gradient is zero; the allowance is 1.1e-4 of c


def test_an_example_without_a_finite_gradient_contributes_nothing() -> None:
    model = llama(tied=True)
    parameters = dict(sorted(model.named_parameters()))
    batch = batch_of(3, 8)
    engine = ClippedGradients(model, parameters, Clipping(0.1))

    def spoiled() -> torch.Tensor:
        return losses(model, batch) * torch.tensor([1.0, float("nan"), 1.0])

    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    engine.accumulate(spoiled, total)
    rest = Batch(input_ids=batch.input_ids[[0, 2]], labels=batch.labels[[0, 2]])
    assert relative_error(total, reference(model, parameters, rest, 0.1)) <= TOLERANCE


def test_weights_that_are_not_finite_do_not_tell_whether_anybody_was_drawn() -> None:
    """The decay of an example without a finite norm is none: 0 times infinity would be seen in the
    sum."""
    layer = torch.nn.Linear(3, 2).eval()
    with torch.no_grad():
        layer.weight[0, 0] = float("inf")
    parameters = dict(sorted(layer.named_parameters()))
    engine = ClippedGradients(layer, parameters, Clipping(1.0), weight_decay=0.1)
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    engine.accumulate(lambda: layer(torch.ones(4, 3)).square().sum(dim=1), total)
    assert all((summed == 0).all() for summed in total.values()), "as with an empty batch"
