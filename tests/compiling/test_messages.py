"""What is said while something compiles: in terminals, and only where it was asked for."""

import io
import sys
from time import sleep
from types import SimpleNamespace

import pymc as pm
import pytest
from rich import reconfigure
from rich.console import Console

from pymc_mcoem import CarlinChib, OnlineEM, TemplateMixture
from pymc_mcoem.carlin_chib import step as steps
from pymc_mcoem.compiling import messages
from pymc_mcoem.schedules import BurstLength


@pytest.fixture
def terminal(monkeypatch):
    """Stand for the terminal that rich writes to."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=60)
    monkeypatch.setattr("rich._console", console)
    yield screen
    reconfigure()


def test_a_line_says_what_is_compiled_and_goes(terminal):
    with messages.telling():
        for what in ("the log-density", "the gradient"):
            with messages.compiling(what):
                pass
            assert terminal.getvalue().endswith("\x1b[2K")  # the line is erased
    said = terminal.getvalue()
    assert said.index("Compiling the log-density") < said.index("Compiling the gradient")


def test_the_line_moves(terminal):
    with messages.telling(), messages.compiling("the log-density"):
        sleep(0.35)
    spinner = {letter for letter in terminal.getvalue() if "\u2800" < letter < "\u28ff"}
    assert len(spinner) > 1


def test_a_function_that_its_first_call_compiles_tells_then_and_once(terminal):
    told = messages.FirstCallTold(lambda x: x + 1, "the model")
    with messages.telling():
        assert [told(1), told(2)] == [2, 3]
    assert terminal.getvalue().count("\x1b[2K") == terminal.getvalue().count("Compiling the model")
    before = terminal.getvalue()
    with messages.telling():
        told(3)
    assert terminal.getvalue() == before
    assert "Compiling the model" in before


def test_nothing_is_said_unasked(terminal):
    with messages.compiling("the log-density"):
        pass
    with messages.telling(enabled=False), messages.compiling("the log-density"):
        pass
    with messages.telling():
        pass
    assert "Compiling" not in terminal.getvalue()


def test_another_bar_is_left_alone(terminal):
    from rich.progress import Progress

    with Progress() as bar, messages.telling():
        bar.add_task("Sampling")
        with messages.compiling("the log-density"):
            pass
        before = terminal.getvalue().count("Compiling")
        bar.refresh()
    assert "Sampling" in terminal.getvalue()
    assert terminal.getvalue().count("Compiling") == before


def test_nothing_is_written_to_files(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr("rich._console", Console(file=file))
    with messages.telling(), messages.compiling("the log-density"):
        pass
    assert file.getvalue().strip() == ""


def test_a_notebook_that_cannot_move_a_line_has_it_once(monkeypatch, capsys):
    monkeypatch.setattr("rich._console", Console(force_jupyter=True))
    monkeypatch.setattr(messages, "find_spec", lambda name: None)
    with messages.telling(), messages.compiling("the log-density"):
        pass
    assert capsys.readouterr().out.split() == ["Compiling", "the", "log-density"]


def test_the_line_moves_in_a_notebook_too(monkeypatch):
    """Within a widget, which is gone afterwards."""
    widgets, shown = [], []

    class Output:
        def __init__(self):
            self.is_open = True
            widgets.append(self)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def clear_output(self, wait=False):
            pass

        def close(self):
            self.is_open = False

    monkeypatch.setitem(sys.modules, "ipywidgets", SimpleNamespace(Output=Output))
    monkeypatch.setattr(messages, "find_spec", lambda name: name)
    monkeypatch.setattr("IPython.display.display", lambda widget: None)
    monkeypatch.setattr("rich.jupyter.display", lambda segments, text: shown.append(text))
    monkeypatch.setattr("rich._console", Console(force_jupyter=True))
    with messages.telling(), messages.compiling("the log-density"):
        sleep(0.35)
    said = "".join(shown)
    assert "Compiling the log-density" in said
    assert len({letter for letter in said if "\u2800" < letter < "\u28ff"}) > 1
    assert [widget.is_open for widget in widgets] == [False]


def test_no_line_is_left_while_a_stream_is_learned(terminal, monkeypatch, rng):
    """What is said while compiling is gone when the first observation is explained."""
    shown = []
    started, stopped = messages.Progress.start, messages.Progress.stop

    class Watched(messages.Progress):
        def start(self):
            shown.append(self)
            started(self)

        def stop(self):
            shown.remove(self)
            stopped(self)

    monkeypatch.setattr(messages, "Progress", Watched)
    mixture = TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
    em = OnlineEM(mixture, random_seed=1, n_start=2, burst_length=BurstLength(4, 0))
    told = []

    def stream():
        for image in rng.normal(size=(5, 3, 3)):
            told.append(len(shown))
            yield image

    em.partial_fit(stream())
    assert told == [0] * 5
    assert "Compiling" in terminal.getvalue()


@pytest.mark.parametrize("in_a_worker", [False, True])
def test_the_first_draw_of_a_chain_tells_what_it_compiles(monkeypatch, in_a_worker):
    """JAX compiles at the first call, which `pm.sample` makes beside its own bar."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", k)
        pm.Normal("y", x, observed=0.3)
    step = CarlinChib(model=model)
    told, point = [], model.initial_point()
    sweep = step._engine.sweep

    def watched(*arguments, **settings):
        told.append(messages._is_told.get())
        return sweep(*arguments, **settings)

    monkeypatch.setattr(step._engine, "sweep", watched)
    if in_a_worker:
        monkeypatch.setattr(steps, "parent_process", object)
    for _ in range(2):
        point, _ = step.step(point)
    assert told == [not in_a_worker, False]
