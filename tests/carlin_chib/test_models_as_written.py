"""Models as PyMC's users write them, against exact answers: the step with nothing set."""

from __future__ import annotations

import pytest

from tests.helpers.checks import LIMIT, largest_share_error
from tests.helpers.models_as_written import MODELS
from tests.helpers.nested_blocks import sample
from tests.helpers.representatives import by_default


@pytest.mark.parametrize("name", by_default(list(MODELS), ["index_of_pairs"]))
def test_every_chain_has_the_exact_probabilities(name, rng):
    written = MODELS[name]()
    posterior = sample(written.steps(), written.model, rng, draws=4_000, chains=2)
    assert largest_share_error(written.exact, posterior) < LIMIT
