"""Executors that work at once, and E-steps that kill whoever makes them."""

from __future__ import annotations

import os
import pickle
import signal
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.toy_families import CompiledNoisy


class AtOnce(Executor):
    """An executor that works when it is asked, through the wire that a process would use."""

    _max_workers = 1

    def __init__(self):
        self.sent = []

    def submit(self, function, /, *arguments, **named):
        message = pickle.dumps((function, arguments))
        self.sent.append(len(message))
        function, arguments = pickle.loads(message)
        future = Future()
        future.set_result(pickle.loads(pickle.dumps(function(*arguments))))
        return future


@dataclass(frozen=True)
class Deadly:
    """An E-step that kills its worker at some value, as often as there are files to remove."""

    folder: str
    ballast: bytes = b""

    def compile(self, family):
        return CompiledDeadly(family, False, self.folder, os.getpid())


@dataclass(frozen=True)
class CompiledDeadly(CompiledNoisy):
    folder: str
    driver: int

    def __call__(self, data, *arguments, **options):
        if float(data["value"]) == 7.0:
            lives = sorted(Path(self.folder).iterdir())
            if lives:
                lives[0].unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(data, *arguments, **options)


def lives(folder, number):
    folder.mkdir()
    for name in range(number):
        (folder / str(name)).touch()
    return str(folder)
