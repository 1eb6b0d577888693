"""What is said while something compiles: in terminals, and only where it was asked for."""

import io

import pytest
from rich import reconfigure
from rich.console import Console

from pymc_mcoem import waiting


@pytest.fixture
def terminal(monkeypatch):
    """Stand for the terminal that rich writes to."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=60)
    monkeypatch.setattr("rich._console", console)
    yield screen
    reconfigure()


def test_a_line_says_what_is_compiled_and_goes(terminal):
    with waiting.telling():
        waiting.tell("the log-density")
        waiting.tell("the gradient")
    said = terminal.getvalue()
    assert said.index("Compiling the log-density") < said.index("Compiling the gradient")
    assert said.endswith("\x1b[2K")  # the line is erased


def test_nothing_is_said_unasked(terminal):
    waiting.tell("the log-density")
    with waiting.telling(enabled=False):
        waiting.tell("the log-density")
    with waiting.telling():
        pass
    assert "Compiling" not in terminal.getvalue()


def test_another_bar_is_left_alone(terminal):
    from rich.progress import Progress

    with Progress() as bar, waiting.telling():
        bar.add_task("Sampling")
        waiting.tell("the log-density")
    assert "Sampling" in terminal.getvalue()


def test_nothing_is_written_to_files(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr("rich._console", Console(file=file))
    with waiting.telling():
        waiting.tell("the log-density")
    assert file.getvalue().strip() == ""
