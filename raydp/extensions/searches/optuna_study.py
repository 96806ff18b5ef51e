"""The study of a search by Optuna: its record in the sweep's folder, and a sampler's copy.

The record is an Optuna database of suggestions and results. Its trials are the configurations that
were actually run: a suggestion that was moved to a configuration of the space is recorded as that
configuration. The sampler works on a copy in memory, whose values and constraints come from the
sweep's folder. This is necessary because a threshold that is a share of the best gain rises with
each better result, and Optuna cannot change a trial's constraints afterwards.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import optuna
import pandas as pd
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.exceptions import StorageInternalError
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.storages import InMemoryStorage, RDBStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial
from sqlalchemy import URL
from sqlalchemy.exc import DatabaseError

from raydp.analysis.tables.columns import SETTINGS
from raydp.analysis.tables.coordinates import UNSET, is_numeric, level_of, varied_fields
from raydp.extensions.searches.observations import Observation
from raydp.search_spaces import Configuration
from raydp.search_spaces.configuration import HYPERPARAMETERS
from raydp.search_spaces.settings import Settings
from raydp.sweep.search import SearchState, known

FILE = "optuna.db"
OBJECTIVES = ["utility_loss", "score"]
_OF_CONSTRAINTS = "constraints"  # prefix of Optuna's names of a trial's constraints


@contextmanager
def opened(folder: Path | None) -> Iterator[Study]:
    """Open the record of a sweep, creating it if necessary. Without a folder, create one in memory.

    Raises:
        ValueError: the file is not Optuna's, or cannot be written.
    """
    # Optuna would log every trial between the lines of the sweep's display.
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        if folder is None:
            yield _study("search", InMemoryStorage())
            return
        url = URL.create("sqlite", database=str(folder.resolve() / FILE)).render_as_string()
        try:
            storage = RDBStorage(url)
        except RuntimeError as error:  # the file was written by another version of Optuna
            raise StorageInternalError(str(error)) from error
        try:
            yield _study(folder.resolve().name, storage)
        finally:
            # Release the file, which another process may need next.
            storage.remove_session()
            storage.engine.dispose()
    except (DatabaseError, StorageInternalError) as error:
        problem = str(error).splitlines()[0]
        raise ValueError(
            f"SWEEP must have an {FILE} that can be read and written, got {problem}. Close what "
            "else writes to it, or delete it and go on with --resume: the search then reads every "
            "result again."
        ) from error
    finally:
        optuna.logging.set_verbosity(level)


def _study(name: str, storage: RDBStorage | InMemoryStorage) -> Study:
    study = optuna.create_study(
        study_name=name,
        storage=storage,
        directions=["minimize"] * len(OBJECTIVES),
        sampler=RandomSampler(seed=0),  # never used: only the copy is sampled, with another sampler
        load_if_exists=True,
    )
    # Optuna warns that names of objectives are experimental.
    if study.metric_names is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names(OBJECTIVES)
    return study


def new_sampler(name: str, initial: int, *, seed: Sequence[int]) -> BaseSampler:
    """Return a sampler for one suggestion, with the seed as its only state, to resume from."""
    # SeedSequence mixes the numbers, so that neighbouring seeds give unrelated samplers.
    number = int(np.random.SeedSequence(list(seed)).generate_state(1)[0])
    if name == "nsga2":
        return NSGAIISampler(population_size=initial, seed=number)
    if name == "gp":
        return GPSampler(n_startup_trials=initial, seed=number, warn_independent_sampling=False)
    return TPESampler(n_startup_trials=initial, multivariate=True, constant_liar=True, seed=number)


@dataclass(frozen=True, kw_only=True)
class SearchStudy:
    """The record, brought up to date, and the sampler's copy of it.

    Attributes:
        record: every trial that was asked for, once.
        copy: the trials that currently count, in the record's order.
        distributions: name -> range of a hyperparameter, logarithmic.
        waiting: configurations that were asked for before a kill and never began, in order.
    """

    record: Study
    copy: Study
    distributions: dict[str, BaseDistribution]
    waiting: tuple[Configuration, ...]

    @classmethod
    def of(
        cls, record: Study, state: SearchState, told: Mapping[Configuration, Observation]
    ) -> SearchStudy:
        """Add new results to the record, and copy the trials that count."""
        # The ranges also hold configurations that ran before a bound excluded them.
        distributions = _distributions([*state.candidates, *told, *state.running, *state.failed])
        # Optuna keeps the choices that a study has begun with.
        for trial in record.get_trials(deepcopy=False):
            choices = {
                n: d
                for n, d in trial.distributions.items()
                if isinstance(d, CategoricalDistribution)
            }
            distributions |= {name: kept for name, kept in choices.items() if name in distributions}
        _bring_up_to_date(record, state, told, distributions)
        # The copy has the running trials, and the results with the constraints as they are now.
        copy = _study("copy", InMemoryStorage())
        waiting = []
        for trial in record.get_trials(deepcopy=False):
            configuration = _configuration(trial)
            if trial.state == TrialState.RUNNING:
                copy.add_trial(
                    _trial(configuration, distributions, system_attrs=trial.system_attrs)
                )
                # A trial was asked for before a kill, and its configuration never began.
                if configuration not in known(state):
                    waiting.append(configuration)
            elif trial.state == TrialState.COMPLETE and configuration in told:
                copy.add_trial(
                    _complete(configuration, distributions, told[configuration], trial.system_attrs)
                )
        return cls(record=record, copy=copy, distributions=distributions, waiting=tuple(waiting))

    @property
    def num_trials(self) -> int:
        """Return the number of trials that were asked for."""
        return len(self.record.get_trials(deepcopy=False))

    def ask(self, sampler: BaseSampler, left: Sequence[Configuration]) -> Configuration:
        """Record the remaining configuration nearest to a sampler's suggestion, and return it."""
        self.copy.sampler = nearest = _Nearest(sampler, self.distributions, left)
        asked = self.copy.ask(self.distributions)
        for name, text in _settings_attr(nearest.chosen).items():
            asked.set_user_attr(name, text)
        self.record.add_trial(self.copy.get_trials(deepcopy=False)[asked.number])
        return nearest.chosen


def _bring_up_to_date(
    record: Study,
    state: SearchState,
    observations: Mapping[Configuration, Observation],
    distributions: dict[str, BaseDistribution],
) -> None:
    """Give each finished, failed and running configuration a trial of its state."""
    # Collect the trials of the record.
    running: dict[Configuration, FrozenTrial] = {}
    ended: set[tuple[Configuration, TrialState]] = set()
    for trial in record.get_trials(deepcopy=False):
        if trial.state == TrialState.RUNNING:
            running[_configuration(trial)] = trial
        else:
            ended.add((_configuration(trial), trial.state))
    # Complete the trials of finished configurations, then fail and add those of failed and running
    # ones.
    for configuration, observation in observations.items():
        if (begun := running.pop(configuration, None)) is not None:
            _tell(record, begun, observation)
        elif (configuration, TrialState.COMPLETE) not in ended:
            record.add_trial(_complete(configuration, distributions, observation, {}))
    for configuration in state.failed:
        if (begun := running.pop(configuration, None)) is not None:
            record.tell(begun.number, state=TrialState.FAIL)
        elif (configuration, TrialState.FAIL) not in ended:
            record.add_trial(_trial(configuration, distributions, state=TrialState.FAIL))
    for configuration in state.running:
        if configuration not in running:
            record.add_trial(_trial(configuration, distributions))
    # A trial that no run belongs to, outside the present candidates, would never end.
    for configuration, trial in running.items():
        if configuration not in state.candidates:  # a bound that was added later excludes it
            record.tell(trial.number, state=TrialState.FAIL)


def _tell(record: Study, trial: FrozenTrial, observation: Observation) -> None:
    """Record a result. Constraints come first, because Optuna accepts none afterwards."""
    running = Trial(record, trial._trial_id)
    for name, by in observation.exceeds.items():
        # Already set if an earlier driver was killed in between.
        if name not in running.constraints:
            running.set_constraint(name, by)
    record.tell(trial.number, [observation.utility_loss, observation.score])


def _trial(
    configuration: Configuration,
    distributions: dict[str, BaseDistribution],
    state: TrialState = TrialState.RUNNING,
    *,
    observation: Observation | None = None,
    system_attrs: dict[str, object] | None = None,
) -> FrozenTrial:
    values = None if observation is None else [observation.utility_loss, observation.score]
    return create_trial(
        state=state,
        params=_params(configuration, distributions),
        distributions=distributions,
        user_attrs=_settings_attr(configuration),
        values=values,
        constraints=None if observation is None else dict(observation.exceeds),
        system_attrs=system_attrs,
    )


def _complete(
    configuration: Configuration,
    distributions: dict[str, BaseDistribution],
    observation: Observation,
    system_attrs: Mapping[str, object],
) -> FrozenTrial:
    """Return a finished trial with current constraints and the sampler's notes (generations)."""
    # The constraints of an earlier threshold give way to the current ones.
    noted = {
        name: value for name, value in system_attrs.items() if not name.startswith(_OF_CONSTRAINTS)
    }
    return _trial(
        configuration,
        distributions,
        TrialState.COMPLETE,
        observation=observation,
        system_attrs=noted,
    )


def _params(
    configuration: Configuration, distributions: Mapping[str, BaseDistribution]
) -> dict[str, float | str]:
    """Return a configuration as a trial's parameters: numbers, or the texts of other values."""
    params: dict[str, float | str] = {
        name: getattr(configuration, name) for name in HYPERPARAMETERS
    }
    for path in distributions.keys() - set(HYPERPARAMETERS):
        value = configuration.settings.get(path, UNSET)
        is_text = isinstance(distributions[path], CategoricalDistribution)
        params[path] = level_of(value) if is_text else float(str(value))
    return params


def _settings_attr(configuration: Configuration) -> dict[str, str]:
    """Return settings as an attribute: a trial's parameters do not tell 16 from 16.0."""
    return {SETTINGS: configuration.settings.text} if configuration.settings else {}


def _configuration(trial: FrozenTrial) -> Configuration:
    own = {name: trial.params[name] for name in HYPERPARAMETERS}
    return Configuration(**own, settings=Settings.parse(trial.user_attrs.get(SETTINGS, "")))


def _distributions(candidates: Sequence[Configuration]) -> dict[str, BaseDistribution]:
    batches, steps, rates = zip(
        *((c.batch_size, c.num_steps, c.learning_rate) for c in candidates), strict=True
    )
    fields = varied_fields(pd.DataFrame({SETTINGS: [c.settings.text for c in candidates]}))
    return {
        "batch_size": IntDistribution(min(batches), max(batches), log=True),
        "num_steps": IntDistribution(min(steps), max(steps), log=True),
        "learning_rate": FloatDistribution(min(rates), max(rates), log=True),
        **{path: _of_field(values) for path, values in fields.items()},
    }


def _of_field(values: list[object]) -> BaseDistribution:
    """Return the range of a field: an interval if every configuration sets a number, else texts."""
    if is_numeric(values) and UNSET not in values:
        numbers = [float(str(value)) for value in values]
        return FloatDistribution(min(numbers), max(numbers), log=min(numbers) > 0)
    return CategoricalDistribution(sorted(set(map(level_of, values))))


class _Nearest(BaseSampler):
    """Move each suggestion of another sampler to the nearest of some configurations.

    The distance is in logarithms, with each hyperparameter's range scaled to 1. Two values that are
    no numbers are 1 apart. The first by (T, b, η, settings) wins ties.
    """

    def __init__(
        self,
        sampler: BaseSampler,
        distributions: dict[str, BaseDistribution],
        left: Sequence[Configuration],
    ) -> None:
        self._sampler, self._distributions = sampler, distributions
        # Sorted, so that ties break alike after a resume.
        self._left = sorted(left, key=lambda c: c.key)
        self.chosen = self._left[0]

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return self._distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, float | str]:
        # A sampler may leave out some parameters, which it then draws one by one.
        inner = self._sampler.infer_relative_search_space(study, trial)
        suggested = self._sampler.sample_relative(study, trial, inner)
        distance = np.zeros(len(self._left))
        for name, distribution in self._distributions.items():
            if distribution.single():
                continue
            value = suggested.get(name)
            if value is None:
                value = self._sampler.sample_independent(study, trial, name, distribution)
            own = [_params(c, self._distributions)[name] for c in self._left]
            distance += np.array([_apart(one, value, distribution) for one in own]) ** 2
        self.chosen = self._left[int(distance.argmin())]
        return _params(self.chosen, self._distributions)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> float:
        raise AssertionError("a configuration is sampled as a whole")


def _apart(one: float | str, other: float | str, distribution: BaseDistribution) -> float:
    """Return the distance of two values of a parameter, in units of its range."""
    if isinstance(one, str) or isinstance(other, str):
        return float(one != other)
    assert isinstance(distribution, IntDistribution | FloatDistribution), "see _distributions"
    if distribution.log:
        return float(np.log(one / other) / np.log(distribution.high / distribution.low))
    return (one - other) / (distribution.high - distribution.low)
