"""Three overlapping classes of a linear model with normal latents: everything in closed form."""

from __future__ import annotations

import numpy as np
import pymc as pm
from scipy.special import logsumexp, softmax

from pymc_mcoem.em.family import Family

DESIGN = np.array([[1.0, 0.2], [0.3, -0.8], [0.5, 0.6]])

#: Classes far from one another beside their spread, and noise that tells little of which it is.
SEPARATED = {
    "weights": np.array([0.5, 0.3, 0.2]),
    "center": np.array([[-4.0, 0.0], [4.0, 0.0], [0.0, 5.0]]),
    "spread": np.array([0.5, 0.5, 0.5]),
    "noise": np.array(8.0),
}


class LinearNormal(Family):
    """x | I ~ Normal(center[I], spread[I]² Id), value | x ~ Normal(DESIGN x, noise² Id)."""

    observation = ("value",)

    def __init__(self) -> None:
        with pm.Model() as self.model:
            weights = pm.Data("weights", [0.5, 0.3, 0.2])
            center = pm.Data("center", [[-0.6, 0.2], [0.5, -0.4], [0.3, 0.9]])
            spread = pm.Data("spread", [0.8, 0.5, 1.1])
            noise = pm.Data("noise", 0.7)
            value = pm.Data("value", [0.3, -0.2, 0.4])
            k = self.class_index = pm.Categorical("class_index", p=weights)
            x = pm.Normal("x", center[k], spread[k], shape=2)
            pm.Normal("observed", (DESIGN * x).sum(axis=1), noise, observed=value)
        self.statistics = {"x": x, "outer": x[:, None] * x[None]}

    @property
    def case(self):
        """Return (observation, parameters) as the model was declared with them."""
        return {"value": np.array([0.3, -0.2, 0.4])}, self.declared_parameters()

    def posterior(self, data, parameters):
        """Return log p(y, I = j), and means and covariances of x given class and value."""
        p, y = parameters, data["value"]
        log_evidence, means, covariances = [], [], []
        for j in range(3):
            variance = p["spread"][j] ** 2
            marginal = variance * DESIGN @ DESIGN.T + p["noise"] ** 2 * np.eye(3)
            away = y - DESIGN @ p["center"][j]
            log_evidence.append(
                np.log(p["weights"][j])
                - 0.5 * away @ np.linalg.solve(marginal, away)
                - 0.5 * np.linalg.slogdet(2 * np.pi * marginal)[1]
            )
            gain = variance * np.linalg.solve(marginal, DESIGN).T
            means.append(p["center"][j] + gain @ away)
            covariances.append(variance * (np.eye(2) - gain @ DESIGN))
        return np.array(log_evidence), np.array(means), np.array(covariances)

    def exact(self, data, parameters):
        log_evidence, mean, covariance = self.posterior(data, parameters)
        weight = softmax(log_evidence)
        outer = covariance + mean[:, :, None] * mean[:, None]
        return {
            "class_weight": weight,
            "x": weight[:, None] * mean,
            "outer": weight[:, None, None] * outer,
        }

    def log_evidence(self, data, parameters):
        return float(logsumexp(self.posterior(data, parameters)[0]))

    def maximize(self, statistics, *, effective_size):
        mass = np.maximum(statistics["class_weight"], 1e-12)
        center = statistics["x"] / mass[:, None]
        square = np.trace(statistics["outer"], axis1=1, axis2=2) / mass
        # One observation's worth of a prior at spread 1 keeps classes of few observations alive.
        variance = (square - (center**2).sum(axis=1)) / 2
        held = (variance * mass * effective_size + 1) / (mass * effective_size + 1)
        return {
            "weights": mass / mass.sum(),
            "center": center,
            "spread": np.sqrt(np.maximum(held, 1e-6)),
            "noise": np.array(0.7),
        }

    def draw(self, rng, n):
        """Draw observations ``(n, 3)`` at the parameters that the model was declared with."""
        p = self.declared_parameters()
        k = rng.choice(3, size=n, p=p["weights"])
        x = p["center"][k] + p["spread"][k, None] * rng.standard_normal((n, 2))
        return x @ DESIGN.T + p["noise"] * rng.standard_normal((n, 3))
