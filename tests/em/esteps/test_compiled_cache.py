"""What is compiled for a family is compiled once, and only where it is the same."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import numpy as np
import pytensor
import pytest

import pymc_mcoem as mcoem
from pymc_mcoem.density.geometry import LatentGeometry
from pymc_mcoem.em.esteps.compiled_cache import CAPACITY, compiled_for
from tests.helpers.toy_families import CompiledNoisy, NormalMixture, mixture_stream
from tests.helpers.toy_runs import THETA, assert_same, driver

COMPILED = []


@dataclass(frozen=True)
class Counting:
    number: int = 0

    def compile(self, family):
        COMPILED.append(self.number)
        return CompiledNoisy(family, False)


@dataclass(frozen=True)
class Holding(Counting):
    """Frozen, and what it holds is not."""

    held: Any = field(default_factory=list)


@dataclass(frozen=True)
class Unequal(Counting):
    """Two that are equal and compile to different things."""

    name: str = field(default="", compare=False)


class Changeable:
    def compile(self, family):
        return Counting().compile(family)


class Derived(Counting):
    """It does not say of itself that it cannot change."""


@pytest.fixture(autouse=True)
def nothing_compiled():
    COMPILED.clear()


@pytest.fixture
def family():
    return NormalMixture()


def test_runs_of_a_family_compile_once(family, rng, tmp_path):
    stream = mixture_stream(rng, 12)
    em = driver(family, e_step=Counting(), parameters=THETA).partial_fit(stream)
    again = driver(family, e_step=Counting(), parameters=THETA).partial_fit(stream)
    em.save(tmp_path / "run.nc")
    loaded = mcoem.OnlineEM.load(tmp_path / "run.nc", family, e_step=Counting())
    loaded.partial_fit(stream)
    mcoem.SAEM(family, e_step=Counting(), parameters=THETA, progressbar=False).fit(stream, 1)
    assert COMPILED == [0]
    assert_same(em, again)


def test_classifiers_of_a_mixture_compile_once():
    mixture = mcoem.TemplateMixture.for_images((4, 4), n_classes=2, n_landmarks=2)
    first, second = (
        mcoem.Classifier(
            mixture,
            {"a": mixture.parameters, "b": mixture.parameters},
            e_step=mcoem.esteps.FixedLatents(),
        )
        for _ in range(2)
    )
    assert first.executor.compiled is second.executor.compiled


@pytest.mark.parametrize(
    "settings",
    [
        Changeable(),
        Derived(),
        Unequal(),
        Holding(),
        Holding(held=Changeable()),
        Holding(held=(1, [])),
    ],
)
def test_settings_that_can_change_unseen_are_compiled_anew(family, settings):
    compiled_for(family, settings)
    compiled_for(family, settings)
    assert len(COMPILED) == 2


def test_another_family_other_settings_or_another_mode_is_another(family):
    first = compiled_for(family, Counting())
    assert compiled_for(NormalMixture(), Counting()) is not first
    assert compiled_for(family, Counting(1)) is not first
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        assert compiled_for(family, Counting()) is not first
    assert compiled_for(family, Counting()) is first


def test_a_family_that_was_changed_is_compiled_anew(family):
    first = compiled_for(family, Counting())
    family.statistics["value"] = 2.0 * family.statistics["value"]
    second = compiled_for(family, Counting())
    family.geometry = LatentGeometry(starts=np.zeros((1, 0)))
    third = compiled_for(family, Counting())
    family.model["means"].set_value(np.arange(3.0))  # before any run ended: as if declared so
    fourth = compiled_for(family, Counting())
    family.model.check_bounds = False
    fifth = compiled_for(family, Counting())
    assert len({id(each) for each in (first, second, third, fourth, fifth)}) == 5
    assert compiled_for(family, Counting()) is fifth


def test_what_was_used_last_is_kept(family):
    kept = [compiled_for(family, Counting(number)) for number in range(CAPACITY)]
    compiled_for(family, Counting(0))
    compiled_for(family, Counting(CAPACITY))
    assert compiled_for(family, Counting(0)) is kept[0]
    assert compiled_for(family, Counting(1)) is not kept[1]


@pytest.mark.parametrize(
    "make",
    [
        NormalMixture,
        lambda: mcoem.TemplateMixture.for_images((4, 4), n_classes=2, n_landmarks=2),
    ],
    ids=["family", "template mixture"],
)
def test_what_was_compiled_does_not_travel(make):
    family = make()
    compiled_for(family, Counting())
    COMPILED.clear()
    sent = cloudpickle.loads(cloudpickle.dumps(family))
    compiled_for(sent, Counting())
    assert COMPILED == [0]


@dataclass(frozen=True)
class Alone:
    def compile(self, family):
        return CompiledAlone(family, False, threading.Lock())


@dataclass(frozen=True)
class CompiledAlone(CompiledNoisy):
    """As a compiled function of PyTensor, which owns its memory, it is at one call at a time."""

    at_work: Any

    def __call__(self, *arguments, **options):
        assert self.at_work.acquire(blocking=False)
        time.sleep(1e-3)
        self.at_work.release()
        return super().__call__(*arguments, **options)


def test_two_threads_that_share_what_is_compiled_call_it_in_turn(family, rng):
    streams = mixture_stream(rng, 40).reshape(2, 20)

    def learned(stream):
        return driver(family, e_step=Alone(), parameters=THETA).partial_fit(stream)

    alone = [learned(stream) for stream in streams]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(learned, streams))
    for one, other in zip(alone, together, strict=True):
        assert_same(one, other)
