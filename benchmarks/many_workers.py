"""Simulate how many workers a run of online EM can keep busy, from costs measured here.

The driver of `OnlineEM` with an executor is one process. For each mini-batch of B observations it
reads and checks the records, hands out calls, takes the answers in order, adds their statistics,
and makes the M-step, before the next mini-batch. W workers make bursts, check their statistics and,
in a large mini-batch, add those of the observations of a call. A small discrete-event simulation
does the same. It uses costs that are measured first (`driver_costs`), on postal digits: times of
bursts and of the driver, for each observation, call and step, and the bytes sent and received.
Times are processor times, so that other programs on the machine do not count.

The simulation is validated on this machine: with one and two workers that make bursts, on the free
cores, and with more workers that sleep as long as a burst takes and return a burst's results, which
load the driver as real workers would. Then it predicts, for up to 1,000 workers, observations per
second; efficiency, which is the share of time in which workers work; what limits them; and the
effect of each remedy, some of which are not implemented. Networks have a bandwidth, but no latency
and no other traffic. Workers are as fast as this machine, and none fails.

    python benchmarks/many_workers.py              # C = 4 and 20, 16 × 16 pixels
    python benchmarks/many_workers.py --classes 30 --side 64 --real 16
    python benchmarks/many_workers.py --tell       # simulate again from the last measurements

It writes ``many_workers_16.json`` to ``output/``.
"""

from __future__ import annotations

import heapq
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from driver_costs import CALL_WORDS, REAL_BATCH, WORDS, CallCosts, Costs, measure
from timing import begin, console, tell_table

from pymc_mcoem.em.online_run import CALL_SIZE, call_size

WORKERS = (1, 2, 10, 100, 256, 1_000)
ROUNDS = (1, 4, 16)
BANDWIDTHS = (1, 10)
#: Numbers of workers for which remedies are compared.
REMEDIED = (100, 1_000)
#: Number of statistics that a node of the tree adds.
FAN_IN = 16


@dataclass(frozen=True)
class Plan:
    """A configuration to simulate.

    Attributes
    ----------
    workers, batch : int
    gigabits : float
        Bandwidth of the driver's link, each way.
    steps_an_update : int
        Steps for each M-step.
    per_call : int or None
        Observations per call, whose statistics the worker adds. None: as many as `OnlineEM` has.
    by_dask : bool
        Whether Dask hands out the calls.
    in_tree : bool
        Whether workers add statistics among themselves, and the driver receives the last few
        sums. `OnlineEM` does not do this.
    """

    workers: int
    batch: int
    gigabits: float = 10.0
    steps_an_update: int = 1
    per_call: int | None = None
    by_dask: bool = False
    in_tree: bool = False

    @property
    def call_size(self) -> int:
        return self.per_call or call_size(self.batch)


@dataclass(frozen=True)
class Outcome:
    """Observations per second, and shares of the time in which workers and the driver work."""

    rate: float
    efficiency: float
    driver: float
    link: float


def simulate_steps(costs: Costs, plan: Plan, rng: np.random.Generator, least: int = 3) -> Outcome:
    """Return the mean of some steps."""
    n_steps = max(least, 2_000 // plan.batch)
    total = np.zeros(4)
    for _ in range(n_steps):
        total += simulate_step(costs, plan, rng)
    seconds, worked, busy, sent = total
    return Outcome(
        rate=n_steps * plan.batch / seconds,
        efficiency=worked / (plan.workers * seconds),
        driver=busy / seconds,
        link=sent / seconds,
    )


def simulate_step(costs: Costs, plan: Plan, rng: np.random.Generator) -> tuple[float, ...]:
    """Return seconds of one step, and seconds in which workers, driver and link worked."""
    byte = 8 / (1e9 * plan.gigabits)
    size = plan.call_size
    call = costs.call(size)
    n_calls = -(-plan.batch // size)
    out, back = byte * call.bytes_out, byte * call.bytes_in
    handing = call.dask if plan.by_dask else call.handing
    asking = size * costs.order + call.send + 0.5 * handing
    taking = 0.5 * handing + call.receive + call.add
    lasting = rng.choice(costs.bursts, size=(n_calls, size)).sum(axis=1)
    # The whole batch is read and checked before its first call is handed out.
    now = busy = plan.batch * costs.accept
    free = [0.0] * plan.workers
    link_out = link_in = 0.0
    under_way: list[tuple[float, int]] = []
    arrived = np.full(n_calls, np.inf)
    n_sent = n_taken = 0
    while n_taken < n_calls:
        if n_sent < n_calls:
            now += asking
            busy += asking
            link_out = max(link_out, now) + out
            end = max(link_out, heapq.heappop(free)) + float(lasting[n_sent])
            heapq.heappush(free, end)
            heapq.heappush(under_way, (end, n_sent))
            n_sent += 1
            continue
        # Answers share the link in the order in which they are ready; the driver takes them in
        # the order of their calls, so it waits for the first.
        while arrived[n_taken] == np.inf:
            end, number = heapq.heappop(under_way)
            link_in = max(link_in, end) + (0.0 if plan.in_tree else back)
            arrived[number] = link_in
        now = max(now, float(arrived[n_taken]))
        if not plan.in_tree:
            now += taking
            busy += taking
        n_taken += 1
    sent = n_calls * out
    if plan.in_tree:
        waited, last = in_tree(costs, plan, byte * costs.bytes_whole)
        now, busy, sent = now + waited, busy + last, sent + FAN_IN * byte * costs.bytes_whole
    else:
        sent += n_calls * back
    ending = costs.step + costs.maximize / plan.steps_an_update
    return now + ending, float(lasting.sum()), busy + ending, sent


def in_tree(costs: Costs, plan: Plan, whole: float) -> tuple[float, float]:
    """Return seconds of adding in a tree of workers, and the driver's share of them."""
    a_sum = whole + costs.single.receive + costs.single.add
    levels = max(math.ceil(math.log(plan.workers, FAN_IN)), 1)
    # Each worker first adds its own statistics.
    own = math.ceil(plan.batch / plan.workers) * costs.single.add
    return own + levels * FAN_IN * a_sum, FAN_IN * a_sum


def tell_costs(found: dict[int, Costs]) -> None:
    """Print the measured costs."""

    def row(words: str, cell: Callable[[Costs], str]) -> list[str]:
        return [words, *map(cell, found.values())]

    def bursts(level: int) -> Callable[[Costs], str]:
        return lambda costs: f"{1e3 * np.percentile(costs.bursts, level):.0f} ms"

    def told(value: float, name: str) -> str:
        factor, unit = (1e-3, "kB") if name.startswith("bytes") else (1e3, "ms")
        return f"{factor * value:.3g} {unit}"

    def of_calls(name: str) -> Callable[[Costs], str]:
        def cell(costs: Costs) -> str:
            calls: tuple[CallCosts, ...] = (costs.single, costs.together)
            return "; ".join(told(getattr(call, name), name) for call in calls)

        return cell

    rows = [row("a burst, mean", lambda costs: f"{1e3 * costs.burst:.0f} ms")]
    for level, name in {0: "least", 50: "median", 100: "greatest"}.items():
        rows.append(row(f"… {name}", bursts(level)))
    for name, words in WORDS.items():
        rows.append(row(words, lambda costs, name=name: told(getattr(costs, name), name)))
    for name, words in CALL_WORDS.items():
        rows.append(row(f"a call of one; of {CALL_SIZE}: {words}", of_calls(name)))
    for size in (1, CALL_SIZE):
        seconds = row(
            f"the driver, calls of {size}",
            lambda costs, size=size: told(costs.driver(size), "driver"),
        )
        rows.append(seconds)
    title = "Measured here; per observation unless a row says otherwise"
    tell_table(("", *(f"C = {n_classes}" for n_classes in found)), rows, title)


def tell_real(found: dict[int, Costs], real: dict[int, dict[str, dict[str, float]]]) -> None:
    """Print measurements with a few workers beside simulations."""
    rng, rows = np.random.default_rng(0), []
    for n_classes, costs in found.items():
        cases: dict[str, tuple[float, Plan]] = {}
        for size, rate in real[n_classes]["bursts"].items():
            name = "this process" if size == "none" else f"executor={size}"
            plan = Plan(1 if size == "none" else int(size), REAL_BATCH, gigabits=math.inf)
            cases[f"{name}, batch_size={REAL_BATCH}"] = rate, plan
        for size, rate in real[n_classes]["sleeping"].items():
            plan = Plan(int(size), 4 * int(size), gigabits=math.inf)
            cases[f"executor={size}, batch_size={plan.batch}, workers that sleep"] = rate, plan
        for name, (rate, plan) in cases.items():
            simulated = simulate_steps(costs, plan, rng, 200).rate
            rows.append((f"C = {n_classes}, {name}", f"{rate:.1f}", f"{simulated:.1f}"))
    headings = ("", "measured", "simulated")
    tell_table(headings, rows, "Observations a second, in real runs and simulated")


def tell_many(n_classes: int, costs: Costs) -> None:
    """Print rates and efficiencies for all numbers of workers, and what limits them."""
    rng, rows = np.random.default_rng(0), []
    for workers in WORKERS:
        cases = [
            Plan(workers, rounds * workers, gigabits)
            for gigabits in BANDWIDTHS
            for rounds in ROUNDS
        ]
        cases.append(Plan(workers, 16 * workers, by_dask=True))
        cells = []
        for plan in cases:
            found = simulate_steps(costs, plan, rng)
            cells.append(f"{found.rate:.3g}, {100 * found.efficiency:.0f} %")
        rows.append((f"{workers:,}", *cells))
    batches = ["W" if rounds == 1 else f"{rounds} W" for rounds in ROUNDS]
    named = [f"B = {each}, {gbits} Gbit/s" for gbits in BANDWIDTHS for each in batches]
    tell_table(
        ("workers", *named, "Dask, B = 16 W, 10 Gbit/s"),
        rows,
        f"C = {n_classes}: observations a second, and share of the time that workers work",
    )
    limits = {}
    for size in (8, 64, 256, 1_024, 16_384):
        each = costs.driver(call_size(size)) + (costs.maximize + costs.step) / size
        limits[f"driver, B = {size:,}"] = 1 / each
    for gigabits in BANDWIDTHS:
        for together in (1, CALL_SIZE):
            rate = 1e9 * gigabits / 8 * together / costs.call(together).bytes_in
            limits[f"link of {gigabits} Gbit/s, calls of {together}"] = rate
    tell_table(
        ("", "observations a second", "keeps busy"),
        [
            (name, f"{rate:.0f}", f"{rate * costs.burst:.0f} workers")
            for name, rate in limits.items()
        ],
        f"C = {n_classes}: what one driver can do at most",
    )


def tell_remedies(n_classes: int, costs: Costs, few: tuple[int, Costs], workers: int) -> None:
    """Print the effect of each remedy."""
    rng = np.random.default_rng(0)
    base = Plan(workers, 16 * workers)
    labels = 10
    a_label = replace(base, workers=workers // labels, batch=base.batch // labels)
    cases: dict[str, tuple[Costs, Plan, int]] = {
        "as it is": (costs, base, 1),
        "one observation a call": (costs, replace(base, per_call=1), 1),
        "batches of 4 W": (costs, replace(base, batch=4 * workers), 1),
        "M-step at every fourth step": (costs, replace(base, steps_an_update=4), 1),
        f"workers add in a tree of {FAN_IN}": (costs, replace(base, in_tree=True), 1),
        f"ten drivers, a mixture each, C = {n_classes}": (costs, a_label, labels),
        f"ten drivers, a mixture each, C = {few[0]}": (few[1], a_label, labels),
        "handed out by Dask": (costs, replace(base, by_dask=True), 1),
    }
    rows = []
    for name, (each, plan, drivers) in cases.items():
        found = simulate_steps(each, plan, rng)
        shares = (found.efficiency, found.driver, found.link)
        told = [f"{100 * share:.0f} %" for share in shares]
        rows.append((name, f"{drivers * found.rate:.0f}", *told))
    tell_table(
        ("", "observations a second", "workers work", "drivers work", "link works"),
        rows,
        f"C = {n_classes}, {workers:,} workers, 10 Gbit/s, B = 16 W unless said",
    )


def main() -> None:
    """Measure, compare, simulate."""
    given = begin(
        __doc__,
        classes=[4, 20],
        side=16,
        real=(64, "observations of each real run"),
        tell=(False, "only simulate from the last figures"),
        output=Path("output"),
    )
    given.output.mkdir(parents=True, exist_ok=True)
    began, file = time.perf_counter(), given.output / f"many_workers_{given.side}.json"
    if not given.tell:
        measured = {}
        for n_classes in given.classes:
            costs, real = measure(n_classes, given.side, given.real, given.output)
            measured[n_classes] = {"costs": asdict(costs), "real": real}
            file.write_text(json.dumps(measured))
    measured = json.loads(file.read_text())
    found = {int(name): Costs.of(each["costs"]) for name, each in measured.items()}
    real = {int(name): each["real"] for name, each in measured.items()}
    tell_costs(found)
    tell_real(found, real)
    few = next(iter(found.items()))
    for n_classes, costs in found.items():
        tell_many(n_classes, costs)
        for workers in REMEDIED:
            tell_remedies(n_classes, costs, few, workers)
    console.print(f"{time.perf_counter() - began:.0f} s.")


if __name__ == "__main__":
    main()
