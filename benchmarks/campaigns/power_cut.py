"""The possible contents of a disk after the power was cut, from the record of `failing_disk.c`.

A model of a journaling file system: bytes of a file are on disk once the file is synced, and a change of a folder once that
folder is synced. Of everything later, any part may be there. `cut` draws one of these states:

- unsynced writes are lost, cut short, or leave zeros;
- unsynced changes of folders (new names, renames, removals) are lost from some moment on or, if `torn`, any of them, and a
  rename may leave both names.
"""

from __future__ import annotations

import copy
import os
import random
import shutil
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HEAD = struct.Struct("=cBHHIQQ")
CHANGES = "CMRLYUD"
"""The operations on folders."""


@dataclass
class Operation:
    """An operation.

    name, other: paths · folder: whether it is about one · inode: of the file · synced: whether its folders were synced later
    """

    kind: str
    name: str
    other: str
    folder: bool
    inode: int
    offset: int
    data: bytes
    file: Contents | None = None
    synced: bool = False


@dataclass
class Contents:
    """The bytes of a file: those on disk, and what was done since (an offset with bytes; without bytes, a new length)."""

    synced: bytes = b""
    later: list[tuple[int, bytes | None]] = field(default_factory=list)

    def whole(self) -> bytes:
        """The bytes after everything that was done."""
        return _changed(self.synced, self.later)

    def drawn(self, draw: random.Random) -> bytes:
        """One of the states that a power cut may leave: unsynced writes are lost from some byte on, or leave zeros."""
        kept = self.later[: draw.randrange(len(self.later) + 1)]
        if kept and kept[-1][1]:
            offset, data = kept[-1]
            kept[-1] = offset, data[: draw.randrange(len(data) + 1)]
        if draw.random() < 0.25:
            kept = [(offset, data and bytes(len(data))) for offset, data in kept]
        return _changed(self.synced, kept)


def _changed(start: bytes, changes: Sequence[tuple[int, bytes | None]]) -> bytes:
    """The bytes of a file after some writes, and changes of its length."""
    data = bytearray(start)
    for offset, written in changes:
        data = (data[:offset] if written is None else data).ljust(offset, b"\0")
        if written:
            data[offset : offset + len(written)] = written
    return bytes(data)


def operations(record: Path) -> Iterator[Operation]:
    """The operations in a record that succeeded."""
    data, at = record.read_bytes(), 0
    while at + HEAD.size <= len(data):
        kind, folder, first, second, size, inode, offset = HEAD.unpack_from(data, at)
        at += HEAD.size
        name, other = data[at : at + first].decode(), data[at + first : at + first + second].decode()
        at += first + second
        if kind != b"x":
            yield Operation(kind.decode(), name, other, bool(folder), inode, offset, data[at : at + size])
        at += size


Tree = dict[str, Contents | str | None]
"""Files by their paths; a text is where a link leads, None a folder."""


def scan(root: Path) -> tuple[Tree, dict[int, Contents]]:
    """All files below a folder, as they are, on disk; and the files by their inodes."""
    tree: Tree = {}
    inodes: dict[int, Contents] = {}
    for path in sorted(root.rglob("*")):
        if path.is_symlink():
            tree[str(path)] = os.readlink(path)
        elif path.is_dir():
            tree[str(path)] = None
        else:
            tree[str(path)] = inodes.setdefault(path.stat().st_ino, Contents(path.read_bytes()))
    return tree, inodes


class PowerCut:
    """The disk of a command before it began, and then the states in which a power cut may leave it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.before = scan(root)

    def cut(self, record: Path, draw: random.Random, torn: bool) -> Tree:
        """Draws a state after the operations in a record."""
        tree, changes = self._read(record)
        last = max((number for number, change in enumerate(changes) if change.synced), default=-1)
        first_lost = draw.randrange(last + 1, len(changes) + 1)
        for number, change in enumerate(changes):
            lost = draw.random() < 0.5 if torn else number >= first_lost
            if change.synced or not lost:
                self._apply(tree, change, both=torn and not change.synced and draw.random() < 0.3)
        return {path: Contents(file.drawn(draw)) if isinstance(file, Contents) else file for path, file in tree.items()}

    def whole(self, record: Path) -> Tree:
        """The state in which nothing is lost: that of the file system, if the record is complete."""
        tree, changes = self._read(record)
        for change in changes:
            self._apply(tree, change)
        return {path: Contents(file.whole()) if isinstance(file, Contents) else file for path, file in tree.items()}

    def _read(self, record: Path) -> tuple[Tree, list[Operation]]:
        """The files before, with the bytes that were written into them since, and the changes of folders, in order."""
        tree, inodes = copy.deepcopy(self.before)
        changes: list[Operation] = []
        for each in operations(record):
            if each.kind == "C":
                each.file = inodes[each.inode] = Contents()
            elif each.kind in "TV" and each.inode in inodes:
                inodes[each.inode].later.append((each.offset, None))
            elif each.kind == "W":
                inodes.setdefault(each.inode, Contents()).later.append((each.offset, each.data))
            elif each.kind == "S":
                _sync(each, inodes.get(each.inode), changes)
            if each.kind in CHANGES:
                changes.append(each)
        return tree, changes

    def _apply(self, tree: Tree, change: Operation, both: bool = False) -> None:
        """Makes a change, as far as what it needs is there. both: a rename leaves the old name, too."""
        name, other = change.name, change.other
        place = os.path.dirname(other or name)
        if place != str(self.root) and place not in tree:
            return
        if change.kind == "C" and change.file is not None:
            tree[name] = change.file
        elif change.kind == "M":
            tree.setdefault(name, None)
        elif change.kind == "Y":
            tree[other] = name
        elif change.kind in "UD":
            tree.pop(name, None)
        elif change.kind in "RL" and name in tree:
            moved = {path: file for path, file in tree.items() if path == name or path.startswith(f"{name}/")}
            for path, file in moved.items():
                tree[other + path[len(name) :]] = file
                if change.kind == "R" and not both:
                    del tree[path]


def _sync(sync: Operation, file: Contents | None, changes: list[Operation]) -> None:
    """Marks what a sync of a file or a folder has brought to disk."""
    if not sync.folder and file is not None:
        file.synced, file.later = file.whole(), []
    for change in changes if sync.folder else ():
        places = [change.other] if change.kind == "Y" else [change.name, change.other]
        change.synced = change.synced or sync.name in map(os.path.dirname, places)


def write(tree: Tree, root: Path) -> None:
    """Makes the folder hold exactly this."""
    for entry in root.iterdir():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    for path, file in sorted(tree.items()):
        place = Path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        if file is None:
            place.mkdir(exist_ok=True)
        elif isinstance(file, str):
            place.symlink_to(file)
        else:
            place.write_bytes(file.synced)
