"""The progress bar: when it shows and what it says."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import xarray as xr

from pymc_mcoem.em import progress
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.progress import CountProgress, RunProgress, sparkline
from pymc_mcoem.em.stream import count_observations
from tests.helpers.toy_families import Noisy, mixture_stream


def shown(capsys, family, observations, **settings):
    em = OnlineEM(family, e_step=Noisy(), random_seed=1, **settings)
    em.partial_fit(observations)
    return capsys.readouterr().out


def test_bar_says_how_the_run_stands(capsys, family, rng):
    out = shown(capsys, family, mixture_stream(rng, 80))
    for heading in ("Observations", "Noise", "Weights", "Acceptance", "Elapsed", "Left"):
        assert heading in out
    assert " 80 " in out
    assert "█" in out


def test_bar_of_a_stream_without_length(capsys, family, rng):
    out = shown(capsys, family, iter(mixture_stream(rng, 60)))
    assert " 60 " in out
    assert "Left" not in out


@pytest.mark.parametrize("one", [1.0, [1.0], np.array([1.0]), iter([1.0])])
def test_one_observation_shows_nothing(capsys, family, one):
    assert shown(capsys, family, one) == ""


def test_quiet(capsys, family, rng):
    assert shown(capsys, family, mixture_stream(rng, 60), progressbar=False) == ""


def test_bar_ends_with_an_error(capsys, family):
    em = OnlineEM(family, e_step=Noisy(), random_seed=1, n_start=1)
    for _ in range(2):
        with pytest.raises(ValueError, match="refused"):
            em.partial_fit([1.0, 2.0, np.nan])
    assert em.n_seen == 4


@pytest.mark.parametrize("bar", ["run", "count"])
def test_while_nothing_is_done_the_bar_says_what_is_waited_for(monkeypatch, bar):
    started = {"run": RunProgress(True, 3), "count": CountProgress(True, 3, "Classified")}[bar]
    with started:
        table = started._bar.make_tasks_table(started._bar.tasks)
        assert table.caption is None  # it has only begun
        monkeypatch.setattr(progress, "EXPLAINED_AFTER", -1.0)
        assert "compiled" in started._bar.make_tasks_table(started._bar.tasks).caption
        started._bar.update(started._task, completed=1)
        assert started._bar.make_tasks_table(started._bar.tasks).caption is None


def test_counts(family):
    assert count_observations(family, 3.0) == 1
    assert count_observations(family, np.zeros(4)) == 4
    assert count_observations(family, np.zeros(())) == 1
    assert count_observations(family, {"value": 1.0}) == 1
    assert count_observations(family, xr.DataArray(np.zeros(5))) == 5
    assert count_observations(family, [1.0, 2.0]) == 2
    assert count_observations(family, (value for value in [1.0])) is None


def test_sparklines():
    assert sparkline(np.array([1.0, 0.0, 0.5])) == "█▁▅"
    assert sparkline(np.zeros(2)) == "▁▁"
    assert sparkline(np.linspace(0.01, 0.07, 30)) == "0.070 … 0.010"


def test_another_bar_on_the_screen_does_no_harm(capsys, family, rng):
    from rich.progress import Progress

    with Progress() as outer:
        outer.add_task("outer", total=1)
        shown(capsys, family, mixture_stream(rng, 60))


def test_where_rich_shows_one_bar_only(capsys, family, rng, monkeypatch):
    from rich.errors import LiveError

    def refuse(self):
        raise LiveError("Only one live display may be active at once")

    monkeypatch.setattr("rich.progress.Progress.start", refuse)
    assert shown(capsys, family, mixture_stream(rng, 60)) == ""


@pytest.mark.parametrize("total", [3, None])
def test_counting_has_the_same_look(capsys, total):
    with CountProgress(True, total, "Classified") as bar:
        for _ in range(3):
            bar.advance()
    out = capsys.readouterr().out
    for heading in ("Classified", "Elapsed", *(["Left"] if total else [])):
        assert heading in out
    assert " 3 " in out


@pytest.mark.parametrize(("enabled", "total", "n"), [(False, 3, 3), (True, 1, 1), (True, None, 1)])
def test_counting_quietly(capsys, enabled, total, n):
    with CountProgress(enabled, total, "Classified") as bar:
        for _ in range(n):
            bar.advance()
    assert capsys.readouterr().out == ""


def test_counting_beside_another_bar(capsys, monkeypatch):
    from rich.errors import LiveError

    def refuse(self):
        raise LiveError("Only one live display may be active at once")

    monkeypatch.setattr("rich.progress.Progress.start", refuse)
    with CountProgress(True, 3, "Classified") as bar:
        bar.advance()
        bar.advance()
    assert capsys.readouterr().out == ""


def test_notebook_without_widgets_has_the_bar_once_at_the_end(capsys, family, rng, monkeypatch):
    import rich

    monkeypatch.setattr(rich.get_console(), "is_jupyter", True)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    out = shown(capsys, family, mixture_stream(rng, 60))
    assert out.count("Observations") == 1 and " 60 " in out
