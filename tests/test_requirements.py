"""requirements.lock is in step with pyproject.toml, whole, and names no place of its own."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
#: What `make lock` pins; peers and rivals are for benchmarks alone.
EXTRAS = ("dev", "docs", "lock")

if not LOCK.exists():
    pytest.skip("no requirements.lock here, as in a source distribution", allow_module_level=True)


@pytest.fixture(scope="module")
def text():
    return LOCK.read_text()


@pytest.fixture(scope="module")
def pins(text):
    """(name, version, marker or None) of every pin."""
    found = re.findall(r"^([a-z0-9._-]+)==(\S+)(?: ; (.*?))? \\$", text, flags=re.MULTILINE)
    return [(name, version, Marker(marker) if marker else None) for name, version, marker in found]


def declared():
    """Return what the project asks for, with the extras that name other extras of it resolved."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [Requirement(line) for line in project["dependencies"]]
    extras = list(EXTRAS)
    for extra in extras:
        for requirement in map(Requirement, project["optional-dependencies"][extra]):
            if canonicalize_name(requirement.name) == canonicalize_name(project["name"]):
                extras.extend(requirement.extras - set(extras))
            else:
                wanted.append(requirement)
    return wanted


@pytest.mark.parametrize("python", ["3.12.0", "3.13.0", "3.14.0"])
@pytest.mark.parametrize("system", ["linux", "darwin", "win32"])
def test_every_requirement_has_one_pin_that_suits_it(pins, python, system):
    here = {
        "python_full_version": python,
        "python_version": python.rpartition(".")[0],
        "sys_platform": system,
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    suiting = [pin for pin in pins if pin[2] is None or pin[2].evaluate(here)]
    versions = {name: version for name, version, _ in suiting}
    assert len(versions) == len(suiting)
    for requirement in declared():
        name = canonicalize_name(requirement.name)
        assert name in versions, f"{requirement} is not in {LOCK.name}: run make lock"
        assert requirement.specifier.contains(versions[name], prereleases=True), (
            f"{LOCK.name} has {name} {versions[name]}, asked for is {requirement}: run make lock"
        )


def test_every_pin_has_hashes_and_none_a_place(text, pins):
    assert len(pins) > 100
    blocks = re.split(r"^(?=[a-z0-9._-]+==)", text, flags=re.MULTILINE)[1:]
    assert len(blocks) == len(pins)
    for block in blocks:
        assert "--hash=sha256:" in block
    for word in ("://", "file:", " @ ", "--index-url", "--find-links", "pymc-mcoem=="):
        assert word not in text


def test_the_recipe_for_conda_asks_for_the_same():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / ".ci" / "recipe.yaml").read_text().splitlines()
    asked = {
        line.split()[1].removesuffix("-base"): "".join(line.split()[2:])
        for line in lines[lines.index("  run:") + 1 : lines.index("tests:")]
    }
    wanted = {"python": project["requires-python"]}
    for each in map(Requirement, project["dependencies"]):
        wanted[each.name] = ",".join(sorted(str(each.specifier).split(","), reverse=True))
        wanted |= {extra: "" for extra in each.extras}
    assert asked == wanted
    assert f'  version: "{project["version"]}"' in lines
    assert f"version: {project['version']}\n" in (ROOT / "CITATION.cff").read_text()
