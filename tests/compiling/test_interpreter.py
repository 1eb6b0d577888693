"""The interpreter that calls NumPy directly: the same bits and errors as PyTensor's own."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.conditional.op import ifelse
from pytensor.graph.fg import FunctionGraph
from pytensor.link.vm import VMLinker

from pymc_mcoem.compiling.interpreter import InterpretingLinker

LINKERS = {
    "PyTensor's": lambda: VMLinker(use_cloop=False, c_thunks=False),
    "ours": InterpretingLinker,
}


def interpreted(inputs, outputs, **named):
    """Return the functions by PyTensor's interpreter and by ours."""
    return [
        pytensor.function(inputs, outputs, mode=Mode(linker(), "fast_compile"), **named)
        for linker in LINKERS.values()
    ]


def test_operators_have_pytensors_results(rng):
    x, y, m = pt.vector("x"), pt.vector("y"), pt.matrix("m")
    n, b = pt.lvector("n"), pt.vector("b", dtype="bool")
    outputs = [pt.exp(x), pt.log(y), pt.gammaln(y), pt.erf(x), pt.sqr(x), -x, pt.sigmoid(y), x**3]
    outputs += [pt.softplus(x * 20), pt.softplus(n), pt.log1mexp(-y), pt.tri_gamma(y)]
    outputs += [x + y + x * 2, pt.mul(x, y, x, 0.5), pt.add(x, y, n), n / 2, n // 2, pt.sqrt(n)]
    outputs += [
        pt.switch(b, x, y),
        pt.switch(pt.gt(x, 0), n, -1),
        pt.cast(n, "float32"),
        pt.eq(n, 2),
    ]
    outputs += [pt.cast(x, "float64"), pt.real(x), pt.and_(b, pt.lt(x, y)), pt.clip(x, -1, y), ~b]
    outputs += [
        m + x,
        m * m.sum(axis=0),
        pt.exp(m.sum()),
        pt.maximum(m.max(axis=1, keepdims=True), m),
        pt.isnan(x) + y,
    ]
    theirs, ours = interpreted([x, y, m, n, b], outputs)
    odd = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-310, 710.0])
    size = 20 + odd.size
    given = [
        np.concatenate([rng.normal(size=20), odd]),
        np.concatenate([rng.gamma(1.0, size=20), odd[::-1]]),
        rng.normal(size=(3, size)),
        rng.integers(-1, 4, size=size),
        rng.random(size) < 0.5,
    ]
    with np.errstate(all="raise"):  # neither warns
        found = ours(*given)
        wanted = theirs(*given)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    # what is returned belongs to the caller
    assert all(each.flags.owndata or each.base is None for each in found)


def test_a_density_and_its_gradient_have_pytensors_bits(rng):
    with pm.Model() as model:
        k = pm.Categorical("k", [0.2, 0.3, 0.5])
        x = pm.StudentT("x", 3.0, mu=pt.as_tensor([0.0, 1.0, -1.0])[k])
        s = pm.HalfNormal("s")
        pm.Normal("y", pt.exp(x) * np.arange(5.0), s, observed=rng.normal(size=5))
    values = [model.rvs_to_values[each] for each in (k, x, s)]
    log_p = model.logp()
    theirs, ours = interpreted(values, [log_p, *pytensor.grad(log_p, values[1:])])
    for j in range(3):
        point = np.array(j), np.array(rng.normal()), np.array(rng.normal())
        assert [each.tobytes() for each in ours(*point)] == [
            each.tobytes() for each in theirs(*point)
        ]


@pytest.mark.parametrize("sizes", [(1, 3), (2, 3)])
def test_what_may_not_be_stretched_is_refused(sizes):
    x, y = pt.vector("x"), pt.vector("y")
    for function in interpreted([x, y], x + y):
        with pytest.raises(ValueError, match="broadcast"):
            function(*map(np.zeros, sizes))


def test_a_linker_takes_a_second_graph():
    """PyTensor makes another linker of the kind, and tells it all settings of the first."""
    x = pt.vector("x")
    first = InterpretingLinker().accept(FunctionGraph([x], [pt.exp(x)]))
    second = first.accept(FunctionGraph([x], [pt.log(x)]))
    assert type(second) is InterpretingLinker and second is not first
    run, (given,), (found,) = second.make_thunk()
    given.storage[0] = np.ones(2)
    run()
    np.testing.assert_array_equal(found.storage[0], np.zeros(2))


def test_random_draws_and_branches_are_pytensors():
    x = pt.scalar("x")
    drawn = []
    for linker in LINKERS.values():
        rng = pytensor.shared(np.random.default_rng(1))
        after, draw = pt.random.normal(rng=rng, return_next_rng=True)
        branch = ifelse(pt.gt(x, 0), pt.exp(draw), pt.exp(-draw))
        function = pytensor.function([x], branch, updates={rng: after}, mode=Mode(linker()))
        drawn.append([float(function(sign)) for sign in (1.0, 1.0, -1.0)])
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 3
