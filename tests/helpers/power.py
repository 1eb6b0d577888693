"""A disk that keeps what was synced, and of the rest what it likes."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Content:
    """A file: what was written, and how much of it was there at the last sync."""

    written: bytearray = field(default_factory=bytearray)
    synced: bytes | None = None


@dataclass
class Disk:
    """One folder. Names that were changed since it was last synced may be there or not.

    A change of a name is whole or not at all, as journals keep it, and any of them may be missing:
    more than file systems lose that keep their order.
    """

    names: dict[str, int] = field(default_factory=dict)
    contents: list[Content] = field(default_factory=list)
    synced: dict[str, int] = field(default_factory=dict)
    changes: list[tuple[str | None, str | None, int]] = field(default_factory=list)

    def change(self, gone, new, number):
        """A name goes, another comes and stands for a content."""
        self.changes.append((gone, new, number))
        self._apply(self.names, (gone, new, number))

    @staticmethod
    def _apply(names, change):
        gone, new, number = change
        names.pop(gone, None)
        if new is not None:
            names[new] = number

    def without_power(self, folder, rng):
        """Write what is left into a folder, as chance has it."""
        names = dict(self.synced)
        kept = rng.random(len(self.changes)) < rng.choice([0.0, 0.5, 0.9, 1.0])
        for change, is_kept in zip(self.changes, kept, strict=True):
            if is_kept:
                self._apply(names, change)
        for name, number in names.items():
            content = self.contents[number]
            left = content.synced
            if left is None:
                left = bytes(content.written[: rng.integers(len(content.written) + 1)])
            (folder / name).write_bytes(left)


@contextmanager
def watched(monkeypatch, folder, *, synced=True):
    """Yield the disk and its states, one after each call; with `synced` False nothing is."""
    disk, states, opened = Disk(), [], {}
    real = {name: getattr(os, name) for name in ("open", "write", "fsync", "replace", "link")}
    real["unlink"] = os.unlink

    def name_in(path):
        path = Path(os.path.abspath(path))
        return path.name if path.parent == folder else None

    def noted():
        states.append(deepcopy(disk))

    def opening(path, flags, *rest, **named):
        descriptor = real["open"](path, flags, *rest, **named)
        name = name_in(path)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            opened[descriptor] = None
        elif name is not None and flags & os.O_CREAT:
            if name not in disk.names:
                disk.contents.append(Content())
                disk.change(None, name, len(disk.contents) - 1)
                noted()
            opened[descriptor] = disk.names[name]
        return descriptor

    def writing(descriptor, part):
        written = real["write"](descriptor, part)
        if opened.get(descriptor) is not None:
            disk.contents[opened[descriptor]].written += bytes(part[:written])
            noted()
        return written

    def syncing(descriptor):
        real["fsync"](descriptor)
        if not synced or descriptor not in opened:
            return
        number = opened[descriptor]
        if number is None:
            disk.synced, disk.changes = dict(disk.names), []
        else:
            disk.contents[number].synced = bytes(disk.contents[number].written)
        noted()

    def replacing(old, new):
        real["replace"](old, new)
        if name_in(old) is not None:
            disk.change(name_in(old), name_in(new), disk.names[name_in(old)])
            noted()

    def linking(old, new):
        real["link"](old, new)
        if name_in(old) is not None:
            disk.change(None, name_in(new), disk.names[name_in(old)])
            noted()

    def unlinking(path, **named):
        real["unlink"](path, **named)
        if name_in(path) in disk.names:
            disk.change(name_in(path), None, -1)
            noted()

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", opening)
        patched.setattr(os, "write", writing)
        patched.setattr(os, "fsync", syncing)
        patched.setattr(os, "replace", replacing)
        patched.setattr(os, "link", linking)
        patched.setattr(os, "unlink", unlinking)
        yield disk, states
