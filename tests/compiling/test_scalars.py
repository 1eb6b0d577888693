"""Rewrites for single numbers: the same results as PyTensor's own code, from less of it."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.subtensor import AdvancedSubtensor

from pymc_mcoem.compiling.arithmetic import strict_mode
from pymc_mcoem.compiling.scalars_numba import WITH_WRITTEN_SCALARS, WrittenScalars


def compiled(inputs, outputs):
    """Return the functions without and with the rewrites."""
    mode = strict_mode("NUMBA")
    return [
        pytensor.function(inputs, outputs, mode=each, on_unused_input="ignore")
        for each in (mode, mode.including(WITH_WRITTEN_SCALARS))
    ]


def fused(function):
    return [
        node.op.scalar_op
        for node in function.maker.fgraph.toposort()
        if isinstance(node.op, Elemwise)
    ]


def test_every_operator_that_is_written_out_has_pytensors_results(rng):
    x, y = pt.vectors("x", "y")
    n = pt.lvector("n")
    smooth = [pt.exp(x), pt.expm1(x), pt.log(y), pt.log1p(y), pt.sqrt(y), pt.sin(x), pt.cos(x)]
    smooth += [pt.tanh(x), pt.sigmoid(x), pt.gammaln(y), 1 / y, pt.sqr(x), -x, abs(x), x - y]
    relations = [pt.lt(x, y), pt.gt(x, 0), pt.le(n, 1), pt.ge(n, x), pt.eq(n, 2), pt.neq(x, y)]
    chosen = [pt.switch(each, x * n, np.inf) for each in relations]
    chosen += [pt.switch(pt.and_(*relations[:2]), 1, -1) * x, pt.clip(n, 0, 2) * y]
    chosen += [pt.switch(pt.or_(*relations[2:4]), -np.inf, pt.clip(x, -1.0, y)), pt.isnan(x) + y]
    # what is not written out stays a call of PyTensor's function
    others = [pt.arctan(x), n // 2, x**3, pt.maximum(x, y), pt.erf(x)]
    outputs = [each + 1.0 for each in [*smooth, *chosen, *others]]
    plain, written = compiled([x, y, n], outputs)
    assert any(isinstance(each, WrittenScalars) for each in fused(written))
    odd = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-310, 700.0])
    x_odd, y_odd = (each.ravel() for each in np.meshgrid(odd, odd))
    given = [
        np.concatenate([rng.normal(size=60), x_odd]),
        np.concatenate([rng.gamma(1.0, size=60), y_odd]),
        rng.integers(-1, 4, size=60 + odd.size**2),
    ]
    for wanted, found in zip(plain(*given), written(*given), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_constants_of_other_types_keep_them():
    v, n = pt.vector("v", dtype="uint64"), pt.lvector("n")
    plain, written = compiled([v, n], [(v % np.uint64(10)) * n + 1.0])
    given = np.array([2**62 + 1, 2**63 + 3, 7], dtype=np.uint64), np.array([1, 1, 1])
    np.testing.assert_array_equal(written(*given)[0], plain(*given)[0])


def test_a_probability_is_looked_up_without_a_vector():
    k = pt.lscalar("k")
    log_p = pm.logp(pm.Categorical.dist([0.2, 0.5, 0.3]), k)
    plain, written = compiled([k], [log_p])
    kinds = [[type(node.op) for node in each.maker.fgraph.toposort()] for each in (plain, written)]
    assert AdvancedSubtensor in kinds[0]
    assert AdvancedSubtensor not in kinds[1]
    assert [float(written(j)[0]) for j in (-1, 0, 1, 2, 3)] == [
        float(plain(j)[0]) for j in (-1, 0, 1, 2, 3)
    ]


def test_all_of_a_few_values_are_combined_one_by_one():
    a, b, c = pt.scalars("a", "b", "c")
    plain, written = compiled([a, b, c], [pt.all(pt.stack([a > 0, b > 0, c > b]))])
    for given in ((1.0, 1.0, 2.0), (1.0, 1.0, 0.5), (-1.0, 1.0, 2.0), (1.0, np.nan, 2.0)):
        assert bool(written(*given)[0]) == bool(plain(*given)[0])
