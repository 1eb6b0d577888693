"""The house is built in layers: what a module imports lies in a package above its own."""

import ast
from pathlib import Path

import pytest

import pymc_mcoem

#: From the ground up: each imports only from those before it.
LAYERS = (
    "validation",
    "labeling",
    "interrupts",
    "compiling",
    "density",
    "laplace",
    "carlin_chib",
    "runs",
    "em",
    "templates",
    "classification",
    "diagnostics",
    "plots",
    "datasets",
    "esteps",
    "moves",
    "pseudo_priors",
    "schedules",
)
ROOT = Path(pymc_mcoem.__file__).parent


def module_name(path):
    name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
    return name.removesuffix(".__init__")


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def imported(source, modules):
    """Return the modules of ours that a source imports, for types alone or within functions too."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in modules:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in modules else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in modules}
    return found


@pytest.fixture(scope="module")
def imports():
    """Return what each module imports; reading it takes a second, which few runs need."""
    return {name: imported(path.read_text(), MODULES) for name, path in MODULES.items()}


def layer(module):
    return LAYERS.index(module.split(".")[1])


def climbs(imports):
    """Return the imports of what lies in a later layer, or in the package's own front door."""
    return [
        f"{module} imports {other}"
        for module, others in imports.items()
        for other in others
        if other == "pymc_mcoem" or layer(other) > layer(module)
    ]


def circle(imports):
    """Return modules that import each other in a ring, if any do."""
    done, path = set(), []

    def visit(module):
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return None
        path.append(module)
        for other in sorted(imports[module]):
            if (ring := visit(other)) is not None:
                return ring
        done.add(path.pop())
        return None

    return next((ring for module in imports if (ring := visit(module)) is not None), None)


def test_modules_import_from_the_layers_before_their_own(imports):
    inside = {name: others for name, others in imports.items() if name != "pymc_mcoem"}
    assert climbs(inside) == []


def test_no_modules_import_each_other(imports):
    assert circle(imports) is None


@pytest.mark.parametrize(
    "source",
    [
        "from pymc_mcoem.em.family import Family",
        "from pymc_mcoem.em import family",
        "import pymc_mcoem.em.family",
        "if TYPE_CHECKING:\n    from pymc_mcoem.em.family import Family",
        "def f():\n    from pymc_mcoem.em.family import Family",
        "from pymc_mcoem import OnlineEM",
    ],
)
def test_an_import_from_a_later_layer_is_seen(source):
    module = "pymc_mcoem.carlin_chib.kernel"
    assert len(climbs({module: imported(source, MODULES)})) == 1


def test_a_circle_is_seen():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None


def private_imports(source):
    """Return the private names that a source imports from other packages."""
    return [
        f"{node.module}.{alias.name}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and not str(node.module).startswith("pymc_mcoem")
        for alias in node.names
        if node.module != "__future__" and "._" in f".{node.module}.{alias.name}"
    ]


def test_private_names_of_other_packages_are_read_in_one_place():
    found = {name for name, path in MODULES.items() if private_imports(path.read_text())}
    assert found == {"pymc_mcoem.compiling.pymc_tables"}


def test_a_private_name_is_seen():
    assert private_imports("from pymc.logprob.abstract import _logprob, logprob") == [
        "pymc.logprob.abstract._logprob"
    ]
    assert private_imports("from numpy._core import multiarray") == ["numpy._core.multiarray"]
    assert private_imports("from __future__ import annotations\nfrom pymc_mcoem.a import _b") == []
