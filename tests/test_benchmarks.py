"""Benchmarks read options, take turns and tell versions in one way, and what names one finds it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import timing

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = {path.stem: path.read_text() for path in sorted((ROOT / "benchmarks").glob("*.py"))}
RUN = [name for name, text in SCRIPTS.items() if 'if __name__ == "__main__"' in text]
NAMING = [ROOT / "CHANGELOG.md", ROOT / "pyproject.toml", *(ROOT / "pymc_mcoem").rglob("*.py")]


@pytest.fixture
def read(monkeypatch):
    """Read options from a line as a script does, without printing and without silencing logs."""

    def read_options(line, **options):
        monkeypatch.setattr("sys.argv", ["script.py", *line.split()])
        monkeypatch.setattr(timing, "tell_versions", lambda: None)
        monkeypatch.setattr(timing, "be_silent", lambda: None)
        return timing.begin("What it does.", **options)

    return read_options


def test_options_are_of_their_defaults_types(read):
    options = {
        "rounds": 3,
        "weight": (0.5, "of the prior"),
        "sizes": [1, 2],
        "quick": False,
        "first_seed": 1,
        "only": {"choices": ["one", "two"]},
        "output": Path("output"),
    }
    given = vars(read("", **options))
    assert given == options | {"weight": 0.5, "only": None}
    line = "--rounds 5 --weight 2 --sizes 7 --quick --first-seed 4 --only two --output there"
    assert vars(read(line, **options)) == {
        "rounds": 5,
        "weight": 2.0,
        "sizes": [7],
        "quick": True,
        "first_seed": 4,
        "only": "two",
        "output": Path("there"),
    }


def test_help_says_what_a_script_does_and_what_its_options_mean(read, capsys):
    with pytest.raises(SystemExit):
        read("--help", rounds=(3, "of all ways"))
    told = capsys.readouterr().out
    assert "What it does." in told
    assert "of all ways" in told


def test_ways_take_turns():
    calls = []
    ways = {name: lambda name=name: calls.append(name) or name for name in "ab"}
    turns = timing.in_turn(ways, 2)
    assert calls == ["a", "b"] * 3  # the first time to warm up
    assert turns.results == {"a": "a", "b": "b"}
    assert [len(each) for each in turns.seconds.values()] == [2, 2]
    assert timing.medians({"a": [3.0, 1.0, 2.0]}) == {"a": 2.0}


@pytest.mark.parametrize("name", RUN)
def test_a_script_reads_its_options_as_all_do(name):
    assert re.search(r"begin\(\s*__doc__", SCRIPTS[name])
    assert "ArgumentParser" not in SCRIPTS[name]


def test_scripts_that_are_named_exist():
    named = {
        (path.name, script)
        for path in NAMING
        for script in re.findall(r"benchmarks/(\w+)\.py", path.read_text())
    }
    (listed,) = re.findall(r"^speed := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named |= {("Makefile", script) for script in listed.split()}
    missing = sorted(f"{place} names {name}" for place, name in named if name not in SCRIPTS)
    assert not missing
