"""The sampler behind Optuna's own interface, with objectives that have nothing to do with servers."""

from __future__ import annotations

import optuna
import pytest

from autotune.search.optuna_sampler import PriorSampler

optuna.logging.set_verbosity(optuna.logging.WARNING)


def bowl(trial: optuna.Trial) -> float:
    x = trial.suggest_int("x", 0, 30)
    y = trial.suggest_float("y", 0.0, 3.0, step=0.1)
    kind = trial.suggest_categorical("kind", ("flat", "steep"))
    return (x - 21) ** 2 / 40 + (y - 0.7) ** 2 + (0.5 if kind == "flat" else 0.0)


def best(sampler: optuna.samplers.BaseSampler, trials: int) -> float:
    study = optuna.create_study(sampler=sampler)
    study.optimize(bowl, n_trials=trials)
    return float(study.best_value)


def test_one_objective_is_minimised_sooner_than_by_chance():
    ours = [best(PriorSampler(seed), 25) for seed in (0, 1)]
    chance = [best(optuna.samplers.RandomSampler(seed), 25) for seed in (0, 1)]
    assert max(ours) < min(chance)


def test_two_objectives_and_constraints():
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=PriorSampler(3))
    for _ in range(18):
        trial = study.ask()
        x, kind = trial.suggest_int("x", 0, 40), trial.suggest_categorical("kind", ("sound", "broken"))
        trial.set_constraint("limit", 1.0 if kind == "broken" else -1.0)
        study.tell(trial, (float(x), float(x**2 % 97)))
    tried = [(trial.params["x"], trial.params["kind"]) for trial in study.trials]
    assert len(set(tried)) == len(tried)
    assert sum(kind == "broken" for _, kind in tried[8:]) <= 3


def test_a_figure_of_0_has_no_ratio_and_ends_nothing():
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=PriorSampler(1, logarithms=True))
    study.optimize(lambda trial: (float(trial.suggest_int("x", 0, 20) % 4), 1.0), n_trials=14)
    assert len({trial.params["x"] for trial in study.trials}) == 14


@pytest.mark.parametrize("seed", [0, 5])
def test_a_study_can_be_repeated(seed):
    params = []
    for _ in range(2):
        study = optuna.create_study(sampler=PriorSampler(seed))
        study.optimize(bowl, n_trials=8)
        params.append([trial.params for trial in study.trials])
    assert params[0] == params[1]


def test_what_cannot_be_listed_is_drawn():
    study = optuna.create_study(sampler=PriorSampler(0))
    study.optimize(lambda trial: sum(trial.suggest_float(f"x{i}", 0, 1) for i in range(9)), n_trials=6)
    assert len(study.trials) == 6
