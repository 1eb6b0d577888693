"""The only access to PyMC's tables of distributions, which have no public names.

PyMC dispatches on the class of a distribution. Its public functions, such as `pymc.logp`, use these
tables, but none says what is registered for a class, which workers need for ``pm.CustomDist``, or
which transform a variable has by default, which shows whether its transform reaches the whole
support of its prior.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymc.distributions.distribution import _support_point
from pymc.distributions.shape_utils import _change_dist_size
from pymc.distributions.transforms import _default_transform
from pymc.logprob.abstract import _icdf, _logccdf, _logcdf, _logprob

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["TABLES", "default_transform"]

#: Tables in which ``pm.CustomDist`` registers what it is given, by name.
TABLES: dict[str, Any] = {
    table.__name__: table
    for table in (_logprob, _logcdf, _logccdf, _icdf, _support_point, _change_dist_size)
}


def default_transform(rv: TensorVariable) -> Any:
    """Return the transform that PyMC gives a random variable by default, or None.

    Examples
    --------
    >>> import pymc as pm
    >>> with pm.Model():
    ...     default_transform(pm.HalfNormal("a")).name, default_transform(pm.Normal("b"))
    ('log', None)
    """
    return _default_transform(rv.owner.op, rv)
