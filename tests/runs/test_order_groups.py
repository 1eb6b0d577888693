"""Several orders as one call, and what is done about one that no worker survives."""

from __future__ import annotations

from itertools import islice

import pytest

from pymc_mcoem.runs.executor import Dispatcher, WorkerLost
from pymc_mcoem.runs.order_groups import answers_in_groups
from pymc_mcoem.runs.workers import Order

DEADLY = 4


def doubled(_, number):
    if number == DEADLY:
        raise WorkerLost("worker: it died")
    return 2 * number


def all_doubled(_, *numbers):
    return [doubled(_, number) for number in numbers]


def joined(orders):
    return Order(all_doubled, tuple(order.arguments[0] for order in orders))


class Counting(Dispatcher):
    """It reads some calls ahead, as with workers, and knows which it made."""

    def answers(self, orders, window=2, total=None):
        self.made = getattr(self, "made", [])
        orders = iter(orders)
        ahead = list(islice(orders, window))
        while ahead:
            first = ahead.pop(0)
            self.made.append(first.arguments)
            yield first.made_by(None)
            ahead += islice(orders, 1)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 9])
def test_a_lost_group_is_sent_one_by_one(size):
    """So that the loss is one order's; those before it have their answers, which are made once."""
    numbers = iter(range(9))
    dispatcher = Counting(lambda: None)
    answers = answers_in_groups(
        dispatcher, (Order(doubled, (number,)) for number in numbers), size, joined, window=2 * size
    )
    found = []
    with pytest.raises(WorkerLost):
        for answer in answers:
            found.append(answer)
    assert found == [2 * number for number in range(DEADLY)]
    whole = [tuple(range(at, min(at + size, 9))) for at in range(0, DEADLY + 1, size)]
    lost = whole[-1][0]
    alone = [(number,) for number in range(lost, DEADLY + 1)]
    assert dispatcher.made == (whole if size == 1 else whole + alone)


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_groups_without_a_loss_have_the_answers_of_single_calls(size):
    orders = (Order(doubled, (number,)) for number in (0, 1, 2, 3, 5))
    dispatcher = Counting(lambda: None)
    assert list(answers_in_groups(dispatcher, orders, size, joined)) == [0, 2, 4, 6, 10]
    assert sum(map(len, dispatcher.made)) == 5
