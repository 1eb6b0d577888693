"""The picture that changes while a run learns."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from types import SimpleNamespace

import matplotlib.image
import numpy as np
import pytest
import rich
from matplotlib import pyplot

import pymc_mcoem as mcoem
from pymc_mcoem.esteps import FixedLatents
from pymc_mcoem.plots import live
from tests.helpers.toy_families import NormalMixture
from tests.helpers.toy_runs import THETA, driver

POINTS = np.linspace(0.0, 1.0, 12)


@pytest.fixture(autouse=True)
def no_figures():
    """Close what tests of other files, in the same process, have left open."""
    pyplot.close("all")


@cache
def mixture_of(kind):
    if kind == "curves":
        return mcoem.TemplateMixture.for_curves(POINTS, n_classes=2)
    return mcoem.TemplateMixture.for_images((5, 6), n_classes=3, n_landmarks=2)


def learner(kind, **settings):
    """Return a run of curves or of images, which compiles nothing, and what it may learn."""
    mixture = mixture_of(kind)
    given = {"e_step": FixedLatents(), "n_start": 4, "random_seed": 1, "progressbar": False}
    shape = mixture.settings.grid_shape
    values = np.abs(np.random.default_rng(1).normal(size=(30, *shape)))
    return mcoem.OnlineEM(mixture, **(given | settings)), values


class Notebook:
    """Stands in for a notebook: what is displayed, and what each place shows in the end."""

    def __init__(self, monkeypatch):
        from IPython import display

        # Matplotlib asks the shell for more when it chooses its back end, at the first figure.
        pyplot.switch_backend("agg")
        self.shell = SimpleNamespace(execution_count=1)
        self.places = []
        monkeypatch.setattr(rich.get_console(), "is_jupyter", True)
        monkeypatch.setattr("IPython.get_ipython", lambda: self.shell)
        monkeypatch.setattr(display, "display", self.show)

    def show(self, shown, *, display_id):
        assert display_id is True
        self.places.append([shown])
        return SimpleNamespace(update=self.places[-1].append)


def size_of(picture):
    found = matplotlib.image.imread(picture)
    assert np.ptp(found[..., :3]) > 0.5  # something is drawn
    return found.shape


@pytest.mark.parametrize("kind", ["curves", "images"])
def test_a_file_has_the_picture_as_it_is_due(tmp_path, monkeypatch, kind):
    drawn, path = [], tmp_path / "templates.png"
    whole = live._picture

    def picture(parameters, mixture, title):
        drawn.append((title, parameters))
        return whole(parameters, mixture, title)

    monkeypatch.setattr(live, "_picture", picture)
    plot = mcoem.LivePlot(every=10, path=str(path))
    em, values = learner(kind, callbacks=[plot])
    assert not path.exists()
    em.partial_fit(values[:4])
    size_of(path)
    before = path.read_bytes()
    em.partial_fit(values[4:])
    assert [title for title, _ in drawn] == [f"{n} observations learned" for n in (1, 11, 21)]
    assert path.read_bytes() != before
    plot.draw(em)
    title, parameters = drawn[-1]
    assert title == "30 observations learned"
    assert parameters.identical(em.learned_parameters)
    assert sorted(tmp_path.iterdir()) == [path]
    assert pyplot.get_fignums() == []


def test_a_batch_run_is_drawn_by_visits(tmp_path, monkeypatch):
    titles = []
    monkeypatch.setattr(live, "_picture", lambda *given: titles.append(given[-1]) or b"")
    em, values = learner("images")
    plot = mcoem.LivePlot(every=50, path=tmp_path / "templates.png")
    saem = mcoem.SAEM(
        em.family, e_step=FixedLatents(), callbacks=[plot], random_seed=1, progressbar=False
    )
    saem.fit(values, 5)
    assert titles == [f"{n} visits learned" for n in (30, 90, 150)]


def test_each_run_is_drawn_from_its_first_step(tmp_path, monkeypatch):
    titles = []
    monkeypatch.setattr(live, "_picture", lambda *given: titles.append(given[-1]) or b"")
    plot = mcoem.LivePlot(path=tmp_path / "templates.png")
    for _ in range(2):
        em, values = learner("images", callbacks=[plot])
        em.partial_fit(values)
    assert titles == [f"{n} observations learned" for n in (1, 26)] * 2


def test_a_mini_batch_draws_once(tmp_path, monkeypatch):
    titles = []
    monkeypatch.setattr(live, "_picture", lambda *given: titles.append(given[-1]) or b"")
    plot = mcoem.LivePlot(every=2, path=tmp_path / "templates.png")
    em, values = learner("images", callbacks=[plot], batch_size=10)
    em.partial_fit(values)
    assert titles == [f"{n} observations learned" for n in (10, 20, 30)]


def test_a_notebook_shows_it_in_place_below_the_cell_that_learns(monkeypatch, tmp_path):
    pytest.importorskip("IPython")
    book = Notebook(monkeypatch)
    em, values = learner("curves", callbacks=[mcoem.LivePlot(every=5)])
    em.partial_fit(values[:20])
    assert [len(place) for place in book.places] == [4]
    book.shell.execution_count = 2
    em.partial_fit(values[20:])
    assert [len(place) for place in book.places] == [4, 2]
    for place in book.places:
        for shown in place:
            assert shown.data.startswith(b"\x89PNG")
    assert pyplot.get_fignums() == []
    both = mcoem.LivePlot(path=tmp_path / "templates.png")
    both.draw(em)
    assert book.places[-1][0].data == both.path.read_bytes()


def test_without_a_notebook_or_a_file_it_says_so():
    with pytest.raises(ValueError, match=r"no notebook to draw in; give a file, as LivePlot\(path"):
        mcoem.LivePlot(every=25)


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"every": 0}, ValueError, "every"),
        ({"path": "templates.jpg"}, ValueError, r"a name that ends in '\.png'"),
        ({"path": "nowhere/templates.png"}, FileNotFoundError, "the folder of"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, monkeypatch, given, kind, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=message):
        mcoem.LivePlot(**({"path": "templates.png"} | given))


def test_a_run_without_templates_says_what_to_write(tmp_path):
    plot = mcoem.LivePlot(path=tmp_path / "templates.png")
    em = driver(NormalMixture(), parameters=THETA, callbacks=[plot])
    with pytest.raises(TypeError, match="this run learns a NormalMixture; give callbacks= a func"):
        em.partial_fit(np.zeros(3))
    assert em.n_seen == 1
    with pytest.raises(ValueError, match="it has learned nothing yet"):
        plot.draw(learner("images")[0])


def test_a_file_that_cannot_be_written_loses_nothing(tmp_path, monkeypatch):
    path = tmp_path / "templates.png"
    em, values = learner("images", callbacks=[mcoem.LivePlot(path=path)])
    path.mkdir()
    with pytest.raises(OSError, match=r"path: .* was not written"):
        em.partial_fit(values)
    assert em.n_learned == 1
    path.rmdir()
    em.partial_fit(values[em.position :])
    assert em.n_seen == len(values)
    assert path.exists()


def test_it_needs_no_ipywidgets_and_no_window(tmp_path):
    code = f"""
import sys
sys.modules["ipywidgets"] = None
import matplotlib
matplotlib.use("agg")
import pymc_mcoem as mcoem
mixture = mcoem.TemplateMixture.for_images((4, 4), 2, n_landmarks=2)
em = mcoem.OnlineEM(mixture, parameters=mixture.parameters, random_seed=1)
assert "matplotlib.pyplot" not in sys.modules
mcoem.LivePlot(path={str(tmp_path / "templates.png")!r}).draw(em)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    size_of(tmp_path / "templates.png")
