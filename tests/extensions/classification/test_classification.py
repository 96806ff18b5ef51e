"""Classification tasks on files that are generated in the published layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from raydp.extensions.classification.labelled import ClassificationTask
from raydp.extensions.classification.networks import ARCHITECTURES, Network, NetworkName
from raydp.extensions.reference_data.task import WithReferenceTask
from raydp.plugins.registries import resolve
from raydp.training.gradients.clipping import ClippedGradients
from raydp.training.gradients.thresholds import Clipping
from tests.builders.data_files import (
    bits_and_classes,
    write_cifar,
    write_mnist,
    write_purchase,
    write_texas,
)

SHAPES = {
    "linear": "5", "mlp": "1x8x8", "purchase": "6", "cnn": "1x8x8", "cnn-mnist": "1x28x28", "cnn-cifar": "3x8x8",
    # at 8 x 8 rounding turns a ReLU over: even autograd of a batch is 0.7 % from its examples'
    "resnet18": "3x16x16",
}  # fmt: skip


def task_of(name: str, **options: Any) -> ClassificationTask:
    return resolve("tasks", name).model_validate(options).build(None)


def test_mnist_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = write_mnist(tmp_path, np.random.default_rng(0))
    task = task_of("mnist", path=tmp_path)
    assert (task.input_shape, task.num_classes, task.facts().num_examples) == ((1, 28, 28), 10, 12)
    pixels = task.train.inputs[:, 0] * 0.3081 + 0.1307
    np.testing.assert_allclose(pixels * 255, written["train-images-idx3-ubyte"], atol=1e-3)
    assert task.heldout.labels.tolist() == written["t10k-labels-idx1-ubyte"].tolist()
    few = task_of("mnist", path=tmp_path, num_examples=4, data_seed=3)
    assert few.facts().num_examples == 4
    assert few.facts().content_hash != task.facts().content_hash


@pytest.mark.parametrize(("classes", "labels", "at"), [(10, 1, 0), (100, 2, 1)])
def test_cifar_is_read_as_it_was_written(
    tmp_path: Path, classes: int, labels: int, at: int
) -> None:
    *of_training, _ = write_cifar(tmp_path, np.random.default_rng(0), classes=classes).values()
    task = task_of("cifar", path=tmp_path, classes=classes)
    train = np.concatenate(of_training)
    assert task.train.labels.tolist() == train[:, at].tolist()
    np.testing.assert_allclose(
        task.train.inputs.reshape(len(train), -1) * 255, train[:, labels:], atol=1e-4
    )
    assert (task.input_shape, task.num_classes, len(task.heldout)) == ((3, 32, 32), classes, 3)


def test_purchase_and_texas_are_read_as_they_were_written(tmp_path: Path) -> None:
    bits, classes = bits_and_classes(np.random.default_rng(0))
    write_purchase(tmp_path, np.random.default_rng(0))
    write_texas(tmp_path, np.random.default_rng(0))
    tasks = [
        task_of("purchase100", path=tmp_path / "dataset_purchase", num_examples=25, num_heldout=10),
        task_of("texas100", path=tmp_path, num_examples=25, num_heldout=10),
    ]
    for task in tasks:
        assert (task.num_classes, len(task.train), len(task.heldout), task.input_shape) == (
            100,
            25,
            10,
            (6,),
        )
        rows = {
            (tuple(map(int, x)), int(y) + 1)
            for x, y in zip(task.train.inputs, task.train.labels, strict=True)
        }
        assert rows <= {(tuple(x), y) for x, y in zip(bits.tolist(), classes.tolist(), strict=True)}
    np.testing.assert_array_equal(tasks[0].train.inputs, tasks[1].train.inputs)


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "a,kind,b\n" + "".join(f"{i},{'xy'[i % 2]},{i / 2}\n" for i in range(100))
    )
    table = task_of("tabular", path=tmp_path / "t.csv", label="kind")
    assert (table.num_classes, table.input_shape) == (2, (2,))
    assert len(table.train) + len(table.heldout) == 100
    assert 0 < len(table.heldout) < 40, "a fifth, more or less"
    assert not table.facts().utility_is_public, "held-out rows are as private as the others"
    for part in (table.train, table.heldout):
        assert all(
            int(x[0]) % 2 == y and x[1] == x[0] / 2
            for x, y in zip(part.inputs, part.labels, strict=True)
        )
    arrays = {"inputs": np.arange(60.0).reshape(10, 2, 3), "labels": np.arange(10) % 3}
    np.savez(tmp_path / "t.npz", **arrays)
    stored = task_of("tabular", path=tmp_path / "t.npz", heldout_fraction=0.5)
    assert (stored.num_classes, stored.input_shape) == (3, (2, 3))


def test_reference_rows_are_drawn_otherwise_than_held_out_ones(tmp_path: Path) -> None:
    """By one hash for both, a fraction below the held-out one would be empty, and any other too
    small."""
    rows = np.random.default_rng(0).random((2000, 2)).astype(np.float32)
    np.savez(tmp_path / "t.npz", inputs=rows, labels=np.arange(2000) % 2)
    of = {"name": "tabular", "path": str(tmp_path / "t.npz"), "heldout_fraction": 0.5}
    facts = WithReferenceTask(of=of, fraction=0.3).build(None).facts()
    assert abs(facts.num_reference - 0.3 * facts.num_units) < 4 * (0.21 * facts.num_units) ** 0.5


def test_a_row_more_leaves_the_others_where_they_were(tmp_path: Path) -> None:
    """Else one record added to the file would be many changes of the training data."""
    rows = np.random.default_rng(0).random((50, 3)).astype(np.float32)
    (few, many) = (tmp_path / "few.npz", tmp_path / "many.npz")
    np.savez(few, inputs=rows[1:], labels=np.arange(1, 50) % 2)
    np.savez(many, inputs=rows, labels=np.arange(50) % 2)
    before, after = (set(task_of("tabular", path=p).train.contents()) for p in (few, many))
    assert before <= after
    assert len(after - before) <= 1


@pytest.mark.parametrize(
    ("name", "files", "options", "message"),
    [
        ("mnist", {}, {}, "task.path must hold train-images-idx3-ubyte"),
        (
            "mnist",
            {"train-images-idx3-ubyte": b"\0\0\x08\x01\0\0\0\x09ab"},
            {},
            "must hold IDX files of bytes",
        ),
        (
            "cifar",
            {f"data_batch_{k}.bin": b"abc" for k in range(1, 6)},
            {},
            "must hold CIFAR's binary files",
        ),
        ("cifar", {}, {"classes": 100}, "must hold train.bin"),
        (
            "texas100",
            {"feats": b"1,0\n", "labels": b"1\n2\n"},
            {"num_examples": 1},
            "as many rows in labels as in feats",
        ),
        (
            "texas100",
            {"feats": b"1,0\n", "labels": b"101\n"},
            {"num_examples": 1},
            "the classes 1 to 100",
        ),
        (
            "texas100",
            {"feats": b"1,x\n", "labels": b"1\n"},
            {"num_examples": 1},
            "numbers separated by commas",
        ),
        (
            "texas100",
            {"feats": b"1,0\n", "labels": b"1\n"},
            {"num_examples": 5},
            "must be at most 1 together, got 6",
        ),
    ],
)
def test_files_that_are_others_are_refused(
    tmp_path: Path, name: str, files: dict[str, bytes], options: dict[str, Any], message: str
) -> None:
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        task_of(name, path=tmp_path, **options)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (
            "a,b\n1,2\n",
            {},
            "task.label must be a column of 't.csv', got 'label'. It has 2 columns of other names",
        ),
        ("a,label\nx,2\n", {}, "must hold numbers beside 'label', got another cell in line 2"),
        ("a,label\nnan,2\n", {}, "must hold finite numbers"),
        ("a,label\n1e300,2\n", {}, "must hold finite numbers"),
        (
            "a,a,label\n1,2,3\n",
            {},
            "must name each column once, got a repeated name in column 2 of the header of t.csv",
        ),
        (
            "label\n2\n3\n",
            {},
            "must have two classes at least and a column beside 'label', got 2 and 0",
        ),
        (
            "a,label\n1,2\n1,3\n",
            {"heldout_fraction": 1e-9},
            "must leave rows to train on and others to hold out",
        ),
    ],
)
def test_tables_that_are_none_are_refused(
    tmp_path: Path, content: str, options: dict[str, Any], message: str
) -> None:
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(ValueError, match=message):
        task_of("tabular", path=tmp_path / "t.csv", **options)


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (np.array([[object()], [1]]), np.array([0, 1]), "must be an .npz file of numeric arrays"),
        (
            np.full((2, 2), 1e300),
            np.array([0, 1]),
            "must have finite single precision numbers in 'inputs'",
        ),
        (np.full((2, 2), 1j), np.array([0, 1]), "must have real numbers"),
        (np.zeros((0, 2)), np.zeros(0, np.int64), "must have real numbers"),
        (np.zeros((2, 0)), np.array([0, 1]), "must have real numbers"),
        (
            np.zeros((2, 2)),
            np.array([0, 2**63 + 5], np.uint64),
            "must have classes from 0 to at most 99999",
        ),
        (np.zeros((2, 2)), np.array([0, 10**12]), "must have classes from 0 to at most 99999"),
        (np.zeros((2, 2)), np.array([0, -1]), "must have classes from 0"),
        (np.zeros((2, 2)), np.array([0, 0]), "must have classes from 0"),
        (np.zeros((2, 2)), np.array([0.0, 1.0]), "must have whole numbers"),
    ],
)
def test_arrays_that_are_none_are_refused(
    tmp_path: Path,
    inputs: np.ndarray,
    labels: np.ndarray,
    message: str,
    recwarn: pytest.WarningsRecorder,
) -> None:
    """Also a pickle, which is not read."""
    np.savez(tmp_path / "t.npz", inputs=inputs, labels=labels)
    with pytest.raises(ValueError, match=message):
        task_of("tabular", path=tmp_path / "t.npz")
    assert not recwarn.list


def test_utility_is_the_error_rate_or_the_cross_entropy() -> None:
    network = NetworkName.parse("mlp:1x8x8:10").build()
    found = {u: task_of("digits", utility=u) for u in ("error_rate", "cross_entropy")}
    task = found["error_rate"]
    logits = network(torch.from_numpy(task.heldout.inputs))
    labels = torch.from_numpy(task.heldout.labels)
    assert task.utility(network) == pytest.approx(
        float((logits.argmax(1) != labels).double().mean()), abs=1e-12
    )
    assert found["cross_entropy"].utility(network) == pytest.approx(
        float(F.cross_entropy(logits, labels)), rel=1e-6
    )
    batch = task.batch(np.array([3, 1]))
    losses = task.per_example_loss(network, batch)
    alone = [task.per_example_loss(network, task.batch(np.array([i]))) for i in (3, 1)]
    torch.testing.assert_close(losses, torch.cat(alone), rtol=1e-6, atol=1e-6)
    assert len(task.train) + len(task.heldout) == 1797


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_network_is_saved_loaded_and_clipped_like_any_model(
    architecture: str, tmp_path: Path
) -> None:
    name = NetworkName.parse(f"{architecture}:{SHAPES[architecture]}:4")
    network = name.build()
    assert str(NetworkName.parse(str(name))) == str(name)
    network.save_pretrained(tmp_path)
    again = Network.from_pretrained(tmp_path).eval()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, *name.input_shape, generator=generator)
    y = torch.randint(0, 4, (5,), generator=generator)
    torch.testing.assert_close(again(x), network(x), rtol=0, atol=0)
    other = name.build(seed=1)
    assert not torch.equal(other(x), network(x)), "another repetition starts elsewhere"
    parameters = dict(sorted(network.named_parameters()))
    expected = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in parameters.items()}
    c = 0.5
    for row in range(5):
        grads = torch.autograd.grad(
            F.cross_entropy(network(x[row : row + 1]), y[row : row + 1]), list(parameters.values())
        )
        norm = torch.sqrt(sum(g.double().square().sum() for g in grads))
        for n, g in zip(parameters, grads, strict=True):
            expected[n] += g.double() * min(1.0, c / norm.item())
    total = {n: torch.zeros_like(p) for n, p in parameters.items()}
    engine = ClippedGradients(network, parameters, Clipping(c))
    engine.accumulate(lambda: F.cross_entropy(network(x), y, reduction="none"), total)
    error = sum((total[n].double() - expected[n]).square().sum() for n in expected).sqrt()
    assert error <= 1e-5 * sum(g.square().sum() for g in expected.values()).sqrt()


def test_images_that_are_too_small_are_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"model\.name 'cnn' must be given images of at least 4 x 4, got inputs of 6",
    ):
        NetworkName.parse("cnn:6:2").build()
