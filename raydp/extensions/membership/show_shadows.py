"""`raydp mia SPEC`: train shadow models, attack with them, and print the results."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path

import typer

from raydp.extensions.membership.shadow_attack import attack
from raydp.extensions.membership.shadow_training import DEFAULT_SHADOWS, shadow_specs, train
from raydp.extensions.membership.show import show_attacks
from raydp.search_spaces import Configuration
from raydp.spec.reading import load_spec
from raydp.system.output import print_json, stderr, stdout


def shadows_command(
    path: Path,
    num_shadows: int | None,
    configuration: Configuration | None,
    *,
    seed: int,
    neural: bool,
    json: bool,
) -> None:
    """Train the models that are not trained yet, attack, and print the results.

    Raises:
        ValueError: the spec or an option is not usable.
    """
    if neural:
        raise ValueError("--neural must go with FILE.npz, got a SPEC. Leave it out.")
    # Train the target and the shadows.
    specs = shadow_specs(
        load_spec(path),
        DEFAULT_SHADOWS if num_shadows is None else num_shadows,
        configuration,
        seed,
    )
    folders = []
    for number, spec in enumerate(specs, start=1):
        stderr.print(f"model {number} of {len(specs)}: {spec.name}", markup=False)
        with redirect_stdout(sys.stderr):  # Ray prints its own messages to stdout
            folder = train(spec)
        if folder is None:
            stderr.print(
                f"{spec.name} has not finished; the same command continues it", markup=False
            )
            raise typer.Exit(1)
        folders.append(folder)
    # Attack.
    answer = attack(specs, folders, seed)
    if json:
        print_json(answer)
        return
    stdout.print(
        f"target and {answer['num_shadows']} shadows of {Configuration.from_json(answer)} at ε = "
        f"{answer['epsilon']}, each trained on a random half: n = {answer['num_examples']} for the "
        f"target instead of {answer['num_examples_of_the_whole']}, and with it q, σ and "
        f"δ\n{answer['num_members']} members, {answer['num_nonmembers']} non-members",
        markup=False,
    )
    show_attacks(answer["attacks"])
