"""Calls that are made together: several orders as one, with separate answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from pymc_mcoem.runs.executor import Dispatcher, WorkerLost
from pymc_mcoem.runs.workers import Order, received

__all__ = ["answers_in_groups"]


def answers_in_groups(
    dispatcher: Dispatcher,
    orders: Iterator[Order],
    group_size: int,
    joined: Callable[[Sequence[Order]], Order],
    **limits: Any,
) -> Iterator[Any]:
    """Yield the answers to orders, which are sent in groups, each as one call.

    After a group whose workers are lost, orders are sent one by one: `WorkerLost` is of one order.

    Parameters
    ----------
    orders : iterator of Order
        Taken when their group is sent. Which orders share a group does not depend on the workers.
    group_size : int
        Number of orders in a group. With 1, orders are sent as they are.
    joined : callable
        Returns one order for several, whose answer is a list with theirs, or `Failed` in the place
        of an answer.
    **limits
        ``window`` and ``total`` of `Dispatcher.answers`, in orders.

    Examples
    --------
    >>> from pymc_mcoem.runs.executor import Dispatcher
    >>> def powers(base, exponents):
    ...     return [base**exponent for exponent in exponents]
    >>> def joined(orders):
    ...     return Order(powers, (tuple(order.arguments[0] for order in orders),))
    >>> orders = (Order(pow, (exponent,)) for exponent in range(5))
    >>> list(answers_in_groups(Dispatcher(lambda: 10), orders, 2, joined))
    [1, 10, 100, 1000, 10000]
    """
    sent: deque[Order] = deque()

    def noted() -> Iterator[Order]:
        for order in orders:
            sent.append(order)
            yield order

    if group_size > 1:
        source = noted()
        groups = map(joined, iter(lambda: tuple(islice(source, group_size)), ()))
        whole: dict[str, Any] = {
            name: None if number is None else -(-number // group_size)
            for name, number in limits.items()
        }
        try:
            for found in dispatcher.answers(groups, **whole):
                for answer in map(received, found):
                    sent.popleft()
                    yield answer
            return
        except WorkerLost:  # one by one, to find out which it was
            pass
    yield from dispatcher.answers(chain(sent, orders), **limits)
