"""Runs of mixtures of templates, new or gone on with from a file."""

from __future__ import annotations

from pathlib import Path

from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.saem import SAEM
from pymc_mcoem.em.schedules import BurstLength
from pymc_mcoem.templates import TemplateMixture


def templates(path):
    """A run of a mixture of templates by bursts, new or gone on with."""
    mixture = TemplateMixture.for_images((6, 6), n_classes=2, n_landmarks=2)
    if Path(path).exists():
        return OnlineEM.load(path, mixture, progressbar=False)
    return OnlineEM(
        mixture,
        e_step=CarlinChibBurst(),
        burst_length=BurstLength(12, 4),
        n_start=6,
        batch_size=2,
        average_from=20,
        on_error="skip",
        random_seed=1,
        progressbar=False,
    )


ITERATIONS = 12


def batch_templates(path):
    """A run of mini-batch SAEM with chains of templates, new or gone on with."""
    mixture = TemplateMixture.for_images((6, 6), n_classes=2, n_landmarks=2)
    if Path(path).exists():
        return SAEM.load(path, mixture, progressbar=False)
    return SAEM(
        mixture,
        e_step=CarlinChibBurst(),
        draws=10,
        batch_size=0.5,
        refit_every=2,
        random_seed=1,
        progressbar=False,
    )
