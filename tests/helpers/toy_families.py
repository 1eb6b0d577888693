"""Small families with closed forms, and an E-step with noise, for tests of drivers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pymc as pm

from pymc_mcoem.em.esteps.base import EStepResult
from pymc_mcoem.em.esteps.exact import Exact
from pymc_mcoem.em.family import Family


class NormalMixture(Family):
    """Scalars from a mixture of normals: weights, means, and one variance are unknown."""

    observation = ("value",)

    def __init__(self, n_classes: int = 3) -> None:
        with pm.Model(coords={"class": range(n_classes)}) as self.model:
            weights = pm.Data("weights", np.full(n_classes, 1 / n_classes), dims="class")
            means = pm.Data("means", np.linspace(-2.0, 2.0, n_classes), dims="class")
            variance = pm.Data("noise_variance", 1.0)
            value = pm.Data("value", 0.0)
            self.class_index = pm.Categorical("class_index", p=weights)
            pm.Normal("y", means[self.class_index], variance**0.5, observed=value)
        self.statistics = {"value": value, "square": value**2}

    def maximize(self, statistics, *, effective_size):
        mass = statistics["class_weight"]
        means = statistics["value"] / mass
        held = np.where(mass > 0, means, 0.0)
        variance = np.sum(statistics["square"] - 2 * held * statistics["value"] + mass * held**2)
        # One observation's worth of a prior at variance 1 keeps the start alive.
        variance = (variance + 1 / effective_size) / (1 + 1 / effective_size)
        return {"weights": mass, "means": means, "noise_variance": np.asarray(variance)}

    def initialize(self, observations, rng, start):
        if start == "random":
            return self.declared_parameters() | {"means": rng.normal(size=self.n_classes)}
        levels = (np.arange(self.n_classes) + 0.5) / self.n_classes
        means = np.quantile(np.array(observations), levels) + 0.01 * rng.normal(size=levels.size)
        return self.declared_parameters() | {"means": means}

    def probabilities(self, data, parameters):
        distance = (data["value"] - parameters["means"]) ** 2 / parameters["noise_variance"]
        odds = parameters["weights"] * np.exp(-0.5 * (distance - distance.min()))
        return odds / odds.sum()

    def exact(self, data, parameters):
        weight = self.probabilities(data, parameters)
        value = data["value"]
        return {"class_weight": weight, "value": weight * value, "square": weight * value**2}

    def batch(self, values: np.ndarray, parameters: Mapping[str, np.ndarray]):
        """Return the mean exact statistics of all `values` at one θ, in plain NumPy."""
        distance = (values[:, None] - parameters["means"]) ** 2 / parameters["noise_variance"]
        odds = parameters["weights"] * np.exp(-0.5 * distance)
        weight = odds / odds.sum(axis=1, keepdims=True)
        return {
            "class_weight": weight.mean(axis=0),
            "value": (weight * values[:, None]).mean(axis=0),
            "square": (weight * values[:, None] ** 2).mean(axis=0),
        }


class EvidentMixture(NormalMixture):
    """The same, whose closed form gives the log-evidence too."""

    def exact(self, data, parameters):
        variance = parameters["noise_variance"]
        logs = -0.5 * (data["value"] - parameters["means"]) ** 2 / variance
        logs = logs + np.log(parameters["weights"]) - 0.5 * np.log(2 * np.pi * variance)
        found = super().exact(data, parameters)
        return {**found, "log_evidence": np.logaddexp.reduce(logs)}


@dataclass(frozen=True)
class Noisy:
    """An E-step that draws classes and carries an adaptation, as a burst does."""

    troubled: bool = False

    def compile(self, family: NormalMixture) -> CompiledNoisy:
        return CompiledNoisy(family, self.troubled)


@dataclass(frozen=True)
class CompiledNoisy:
    family: NormalMixture
    troubled: bool

    def initial_state(self):
        return {"scale": np.ones(2), "count": np.array(0)}

    def __call__(self, data, parameters, rng, state, *, draws, tune):
        weight = self.family.probabilities(data, parameters)
        chain = rng.choice(weight.size, size=tune + draws, p=weight)[tune:]
        # Statistics that depend on the adaptation, so that losing it shows.
        share = np.bincount(chain, minlength=weight.size) / draws
        share = (share + 1e-3 * state["scale"][0] * weight) / (1 + 1e-3 * state["scale"][0])
        value = data["value"]
        count = state["count"] + 1
        return EStepResult(
            statistics={"class_weight": share, "value": share * value, "square": share * value**2},
            class_index=chain,
            acceptance=float(rng.uniform()),
            log_evidence=float(np.log(weight.max())),
            troubles={"mode not found": 2} if self.troubled and count % 7 == 0 else {},
            state={"scale": state["scale"] * np.exp(0.1 * rng.normal(size=2)), "count": count},
        )


@dataclass(frozen=True)
class Towering:
    """The exact E-step, but that statistics of 555 are the largest that are finite."""

    def compile(self, family: NormalMixture) -> CompiledTowering:
        return CompiledTowering(Exact().compile(family))


@dataclass(frozen=True)
class CompiledTowering:
    exact: object

    def initial_state(self):
        return self.exact.initial_state()

    def __call__(self, data, *arguments, **options):
        found = self.exact(data, *arguments, **options)
        if data["value"] == 555:
            found.statistics["square"] = np.full_like(found.statistics["square"], 1.7e308)
        return found


def mixture_stream(rng: np.random.Generator, size: int) -> np.ndarray:
    """Return scalars from three overlapping normals of unequal weights."""
    classes = rng.choice(3, size=size, p=[0.5, 0.3, 0.2])
    return np.array([-3.0, 0.0, 2.5])[classes] + rng.normal(size=size)


class Failing(Noisy):
    """An E-step that fails when asked to, by the value that it meets."""

    def compile(self, family):
        return CompiledFailing(family, self.troubled)


class CompiledFailing(CompiledNoisy):
    def __call__(self, data, parameters, rng, state, *, draws, tune):
        value = float(data["value"])
        if value == 777:
            raise KeyboardInterrupt
        if value == 888:
            raise np.linalg.LinAlgError("singular")
        result = super().__call__(data, parameters, rng, state, draws=draws, tune=tune)
        if value == 999:
            result.statistics["square"][1] = np.nan
        return result
