"""The names on a simulated disk: what a process sees, and what a crash would leave of it."""

import errno
import os
import posixpath
from dataclasses import dataclass

from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.contents import FileContents


class Directory:
    """A directory without its name."""


Node = FileContents | Directory


@dataclass(frozen=True, slots=True, eq=False)
class _NameChange:
    """A change of names that is atomic and becomes durable when `directory` is synced.

    Afterwards `path` names `node`, or nothing if that is None, and `moved_from` names nothing.
    """

    directory: str
    path: str
    node: Node | None
    moved_from: str | None = None

    def apply(self, names: dict[str, Node]) -> None:
        """Change the names. Changes of one name must be applied in their order."""
        if self.moved_from is not None:
            names.pop(self.moved_from, None)
        if self.node is None:
            names.pop(self.path, None)
        else:
            names[self.path] = self.node

    def touches(self) -> set[str]:
        """Return the names it concerns."""
        return {self.path} if self.moved_from is None else {self.path, self.moved_from}


class Medium:
    """Files and directories by path. `/` and `.` are always there.

    Each change of names is visible at once and durable after `sync_directory`. At a crash the
    changes not yet durable are lost, kept, kept up to one of them, or kept in part, but a change
    never survives when an earlier change of the same name did not.
    """

    def __init__(self) -> None:
        root: dict[str, Node] = {"/": Directory(), ".": Directory()}
        self._visible = root
        self._durable = dict(root)
        self._pending: list[_NameChange] = []

    def names_in(self, directory: str) -> list[str]:
        """Return the sorted names in a directory; an absent one is empty."""
        directory = posixpath.normpath(directory)
        if isinstance(self._visible.get(directory), FileContents):
            raise _error(errno.ENOTDIR, directory)
        return sorted(
            posixpath.basename(path)
            for path in self._visible
            if path != directory and parent_of(path) == directory
        )

    def find(self, path: str) -> Node | None:
        """Return what has this name."""
        return self._visible.get(posixpath.normpath(path))

    def file(self, path: str) -> FileContents:
        """Return the file that has this name."""
        node = self.find(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if isinstance(node, Directory):
            raise _error(errno.EISDIR, path)
        return node

    def create(self, path: str) -> FileContents:
        """Make an empty file with a name that is free."""
        contents = FileContents()
        self._link(path, contents)
        return contents

    def make_directory(self, path: str) -> None:
        """Make one directory with a name that is free."""
        self._link(path, Directory())

    def rename(self, source: str, target: str) -> None:
        """Give a file another name, replacing the file that had it."""
        node = self.file(source)
        self._require_directory(parent_of(target))
        if isinstance(self.find(target), Directory):
            raise _error(errno.EISDIR, target)
        source, target = posixpath.normpath(source), posixpath.normpath(target)
        if source != target:
            self._change(_NameChange(parent_of(target), target, node, source))

    def remove(self, path: str) -> None:
        """Take a file's name away."""
        self.file(path)
        self._change(_NameChange(parent_of(path), posixpath.normpath(path), None))

    def sync_directory(self, path: str) -> None:
        """Make the changes of names in a directory durable."""
        self._require_directory(path)
        directory = posixpath.normpath(path)
        durable: list[_NameChange] = []
        names: set[str] = set()
        for change in reversed(self._pending):
            # A later change of a name never becomes durable before an earlier one of that name.
            if change.directory == directory or not names.isdisjoint(change.touches()):
                durable.append(change)
                names |= change.touches()
        for change in reversed(durable):
            change.apply(self._durable)
            self._pending.remove(change)

    def used_bytes(self) -> int:
        """Return the size of all files that have a name."""
        files = (node for node in self._visible.values() if isinstance(node, FileContents))
        return sum(len(contents.data) for contents in files)

    def crash(self, randomness: Randomness) -> None:
        """Become what the machine finds after a power loss."""
        for change in self._survivors(randomness):
            change.apply(self._durable)
        self._pending.clear()
        found = self._durable
        self._durable = {path: node for path, node in found.items() if _reachable(path, found)}
        self._visible = dict(self._durable)
        for node in self._durable.values():
            if isinstance(node, FileContents):
                node.crash(randomness)

    def _survivors(self, randomness: Randomness) -> list[_NameChange]:
        match randomness.below(4):
            case 0:
                return []
            case 1:
                return self._pending[: randomness.below(len(self._pending) + 1)]
            case 2:
                return self._some_survivors(randomness)
            case _:
                return self._pending

    def _some_survivors(self, randomness: Randomness) -> list[_NameChange]:
        survivors = []
        lost: set[str] = set()
        for change in self._pending:
            if randomness.below(2) and lost.isdisjoint(change.touches()):
                survivors.append(change)
            else:
                lost |= change.touches()
        return survivors

    def _link(self, path: str, node: Node) -> None:
        self._require_directory(parent_of(path))
        if self.find(path) is not None:
            raise _error(errno.EEXIST, path)
        self._change(_NameChange(parent_of(path), posixpath.normpath(path), node))

    def _change(self, change: _NameChange) -> None:
        change.apply(self._visible)
        self._pending.append(change)

    def _require_directory(self, path: str) -> None:
        node = self.find(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if not isinstance(node, Directory):
            raise _error(errno.ENOTDIR, path)


def parent_of(path: str) -> str:
    """Return the directory that holds the name."""
    return posixpath.dirname(posixpath.normpath(path)) or "."


def _reachable(path: str, names: dict[str, Node]) -> bool:
    while (parent := parent_of(path)) != path:
        if parent not in names:
            return False
        path = parent
    return True


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
