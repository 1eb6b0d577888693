"""The documentation names everything that is public, and only tests and scripts that exist."""

from __future__ import annotations

import importlib.util
import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pymc_mcoem
import pymc_mcoem.datasets
import pymc_mcoem.diagnostics
import pymc_mcoem.plots

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "api.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.md"))
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(?::[^\n]*\n)*(.*?)^```", re.MULTILINE | re.DOTALL)
ANSWER = re.compile(r"^:::\{admonition\} Answer[^\n]*\n(.*?)^:::$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: A dotted name of the package in text, code or a role; none of a file, an address or a glob.
NAME = re.compile(r"(?<![\w./-])(?:pymc_)?mcoem((?:\.\w+)+)(?![\w*/-]|\.\*)")


EXTENDING = ("esteps", "moves", "pseudo_priors", "schedules", "templates")


@pytest.mark.parametrize("module", ["", "datasets", "diagnostics", "plots", *EXTENDING])
def test_the_reference_lists_every_public_name(module):
    found = pymc_mcoem if not module else getattr(pymc_mcoem, module)
    listed = set(re.findall(r"^   (?:\w+\.)*(\w+)$", REFERENCE.read_text(), flags=re.MULTILINE))
    missing = set(found.__all__) - listed - {"datasets", "diagnostics", *EXTENDING}
    assert not missing, f"list {sorted(missing)} in docs/api.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_tests_that_exist(page):
    for file, name in re.findall(r"`([\w/]+\.py)::(\w+)`", page.read_text()):
        code = ROOT / "tests" / file
        assert code.exists(), f"{page.name} names tests/{file}, which does not exist"
        assert f"def {name}(" in code.read_text(), f"{page.name} names {name}, not in tests/{file}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_scripts_that_exist(page):
    for script in re.findall(r"(?:benchmarks|examples)/\w+\.py", page.read_text()):
        assert (ROOT / script).exists(), f"{page.name} names {script}, which does not exist"


def test_pages_name_what_the_package_has():
    wrong = [
        f"{page.name} names {found[0]}"
        for page in PAGES + NOTEBOOKS
        for found in NAME.finditer(page.read_text())
        if not is_there(f"pymc_mcoem{found[1]}")
    ]
    assert not wrong


def is_there(name):
    """Return whether a dotted name leads to a module or to something in one."""
    try:
        pkgutil.resolve_name(name)
    except (AttributeError, ModuleNotFoundError):
        return False
    return True


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("`mcoem.nothing`", [".nothing"]),
        ("{py:obj}`a race <pymc_mcoem.laplace.newton.Race>`.", [".laplace.newton.Race"]),
        ("as `mcoem.moves.Walk(2)` does", [".moves.Walk"]),
        ("`pymc_mcoem/em/run.py`, `pymc_mcoem.em.*`, https://a.org/mcoem.html", []),
    ],
)
def test_a_wrong_name_is_seen(text, names):
    found = [match[1] for match in NAME.finditer(text)]
    assert found == names
    assert not any(is_there(f"pymc_mcoem{name}") for name in found)


@pytest.mark.skipif(not importlib.util.find_spec("myst_nb"), reason="needs the extra docs")
def test_a_page_that_runs_code_is_taken_as_a_notebook(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "papers.bib").write_text((ROOT / "docs" / "references.bib").read_text())
    (source / "conf.py").write_text(
        "extensions = ['myst_nb', 'notebook_pages', 'sphinxcontrib.bibtex']\n"
        "bibtex_bibfiles = ['papers.bib']\n"
        "myst_enable_extensions = ['colon_fence']\n"
        "nb_execution_excludepatterns = ['far.md']\n"
        "notebooks_without_results = {'far': 'its data are far away'}\n"
    )
    (source / "index.md").write_text("# All\n\n```{toctree}\nnear\nfar\n```\n")
    front = NOTEBOOKS[0].read_text().partition("# ")[0]
    cell = "```{code-cell} ipython3\nprint(6 * 7)\n```\n\n"
    answer = ":::{admonition} Answer\n:class: dropdown\n\n*Yes*, as {doc}`far` says.\n:::\n"
    (source / "near.md").write_text(
        f"{front}# Near\n\n{cell}See {{cite:t}}`cappe2009`.\n\n{answer}"
    )
    (source / "far.md").write_text(f"{front}# Far away\n\n{cell}")
    subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-b", "html", source, tmp_path / "html"],
        env=os.environ | {"PYTHONPATH": str(ROOT / "docs")},
        check=True,
    )
    near, far = ((tmp_path / "html" / f"{name}.html").read_text() for name in ("near", "far"))
    assert 'href="near.ipynb"' in near and "lacks its results" not in near
    folded = re.search(r"<summary>Answer</summary>(.*?)</details>", near, flags=re.DOTALL)
    assert folded and "<em>Yes</em>" in folded[1] and "div" not in folded[1]
    assert "This page lacks its results: its data are far away." in far
    notebook = json.loads((tmp_path / "html" / "near.ipynb").read_text())
    code, text = notebook["cells"][1:]
    assert code["outputs"][0]["text"] == "42\n"
    assert text["source"].splitlines() == [
        "See Cappé and Moulines (2009).",
        "",
        "<details><summary>Answer</summary>",
        "",
        "*Yes*, as *Far away* says.",
        "",
        "</details>",
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.stem)
def test_answers_to_exercises_run(page, monkeypatch, request):
    """The code of an answer runs after the cells of its page and the answers before it."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    text = page.read_text()
    if "load_growth" in text:
        monkeypatch.setenv("PYMC_MCOEM_DATA", str(request.getfixturevalue("data_directory")))
    answers = [code for answer in ANSWER.findall(text) for code in CODE.findall(answer)]
    names = {"__name__": "__main__"}
    for code in CELL.findall(text) + answers:
        exec(compile(code, str(page), "exec"), names)
