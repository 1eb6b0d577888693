"""How property tests are run."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

__all__ = ["steady"]


def steady(max_examples: int) -> settings:
    """Return settings under which the examples are the same at every run, and none is shrunk."""
    return settings(
        max_examples=max_examples,
        deadline=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
