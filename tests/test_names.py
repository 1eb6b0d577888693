"""The package's names: public ones are there and loaded when needed, and no name is vague."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pymc_mcoem as mcoem

#: What some of the package needs, takes long to import, and PyMC does not import itself.
HEAVY = [
    "arviz_plots",
    "arviz_stats",
    "h5py",
    "jax",
    "numba",
    "numpyro",
    "scipy.optimize",
    "scipy.stats",
    "sklearn",
]


def test_every_public_name_is_there():
    assert set(mcoem.__all__) <= set(dir(mcoem))
    for name in mcoem.__all__:
        assert getattr(mcoem, name) is not None
    assert mcoem.class_index_summary.__module__ == "pymc_mcoem.diagnostics.summary"
    with pytest.raises(AttributeError, match="attribute nothing"):
        mcoem.nothing  # noqa: B018


@pytest.mark.parametrize("space", ["esteps", "moves", "pseudo_priors", "schedules"])
def test_those_who_extend_find_what_they_need_in_one_place(space):
    """Nothing is imported there and left out, and a name means the same as at the top."""
    module = getattr(mcoem, space)
    assert space in mcoem.__all__
    public = {name for name in vars(module) if not name.startswith("__")}
    assert public == set(module.__all__)
    for name in set(module.__all__) & set(mcoem.__all__):
        assert getattr(module, name) is getattr(mcoem, name)


@pytest.mark.parametrize(
    "asked",
    [
        "",
        "pymc_mcoem.CarlinChib",
        "pymc_mcoem.OnlineEM, pymc_mcoem.TemplateMixture.for_images",
        "pymc_mcoem.esteps, pymc_mcoem.moves, pymc_mcoem.pseudo_priors, pymc_mcoem.schedules",
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(asked):
    code = f"""
import sys, pymc
before = set(sys.modules)
import pymc_mcoem
{asked}
print(*(set({HEAVY}) & (set(sys.modules) - before)))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


#: Words that meant several things here, or nothing to a reader; each has a plain one instead.
#: Of words with a meaning in the field, such as ``calls`` and ``products``, some are left.
VAGUE = {
    "crew",
    "judge",
    "kept",
    "left_out",
    "numbers",
    "operators",
    "own_start",
    "parts",
    "patience",
    "tilt",
    "united",
}


def names_given(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the names that a module gives, with their lines; imported ones are given elsewhere."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.ClassDef(name=name) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield node.lineno, name
            case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield node.lineno, name
            case ast.TypeVar(name=name) | ast.ParamSpec(name=name) | ast.TypeVarTuple(name=name):
                yield node.lineno, name
            case ast.alias(asname=str(name)):
                yield node.lineno, name


def test_every_kind_of_name_is_looked_at():
    code = """
import a as imported
class Class[Type]:
    field: int
    async def method(self, plain, /, *rest, named=0, **others): self.attribute = lambda inner: 0
try: (walrus := 1)
except Error as error: pass
for item in [each for each in read]: first, *last = item
with file as opened: total += 1
match value:
    case {"key": whole, **remaining} | [whole, *remaining]: pass
"""
    found = {name for _, name in names_given(ast.parse(code))}
    assert found == {
        *("imported", "Class", "Type", "field", "method", "self", "plain", "rest", "named"),
        *("others", "attribute", "inner", "walrus", "error", "item", "each", "first", "last"),
        *("opened", "total", "whole", "remaining"),
    }


def test_no_name_is_vague():
    folder = Path(mcoem.__file__).parent
    modules = [*folder.rglob("*.py")]
    assert len(modules) > 200
    found = [
        f"{module.relative_to(folder)}:{line}: {name}"
        for module in modules
        for line, name in names_given(ast.parse(module.read_text(encoding="utf-8")))
        if name.strip("_").lower() in VAGUE
    ]
    assert found == []
