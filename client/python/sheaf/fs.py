# SPDX-License-Identifier: Apache-2.0
"""Datasets of the cache for whatever reads through fsspec.

    sheaf://NAME/path          sheaf://~OWNER/NAME/path

    pandas.read_csv("sheaf://tables/2024.csv")
    with sheaf.open_fs().open("images/cat/1.png") as file: ...

Read-only. A name of several parts (``imagenet/train``) needs no mark: the
shortest one that is a dataset is taken. Where ``imagenet`` is a dataset, too,
``sheaf://imagenet/train//cat/1.jpg`` says where the name ends.

Needs fsspec, which finds this by the package's entry point; ``open_fs()``
does where the package is not installed.
"""

from __future__ import annotations

import errno
from datetime import datetime, timezone
from typing import Any

import fsspec  # type: ignore[import-untyped]
from fsspec.spec import (  # type: ignore[import-untyped]
    AbstractBufferedFile,
    AbstractFileSystem,
)

from . import checks
from .source import Source, Spec, source_of

__all__ = ["SheafFileSystem", "open_fs"]


class SheafFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """fsspec's file system over datasets.

    ``socket``: of the daemon, default as Dataset's; ``timeout``: seconds
    within which each call ends. The version of a dataset that is newest when
    it is first touched is read until ``invalidate_cache()``. Folders and
    sizes come from the listing, without a message to the daemon. A range is
    fetched alone and copied once, not its file. Errors are OSErrors.
    """

    protocol = "sheaf"
    root_marker = ""

    def __init__(
        self,
        socket: str | None = None,
        timeout: float = 60.0,
        **options: Any,
    ) -> None:
        super().__init__(socket=socket, timeout=timeout, **options)
        self._socket = checks.path("socket", socket)
        self._timeout = checks.seconds("timeout", timeout)
        self._open_sources: dict[str, Source] = {}

    def invalidate_cache(self, path: str | None = None) -> None:
        """The next access opens the versions that are newest then."""
        self._open_sources.clear()
        super().invalidate_cache(path)

    # ---- names ----

    def _source(self, name: str) -> Source:
        source = self._open_sources.get(name)
        if source is None:
            spec = Spec(name, self._socket, self._timeout, None, 0)
            source = self._open_sources[name] = source_of(spec)
        return source

    def _find(self, path: str) -> tuple[str, Source, str]:
        """(name, dataset, path inside)."""
        path = self._strip_protocol(path).lstrip("/")
        name, mark, inside = path.partition("//")
        if mark:
            return name, self._source(name), inside.strip("/")
        parts = path.split("/")
        first = 2 if parts[0].startswith("~") else 1
        for end in range(first, len(parts) + 1):
            name = "/".join(parts[:end])
            try:
                source = self._source(name)
            except FileNotFoundError:
                continue
            return name, source, "/".join(parts[end:])
        raise FileNotFoundError(errno.ENOENT, "no such dataset", path)

    def _entry(self, path: str) -> dict[str, Any]:
        name, source, inside = self._find(path)
        full = f"{name}/{inside}" if inside else name
        if inside:
            try:
                number = source.lookup(inside)
            except IsADirectoryError:
                pass
            else:
                return self._file(full, source, number)
        source.entries(inside)
        return {"name": full, "size": 0, "type": "directory"}

    @staticmethod
    def _file(name: str, source: Source, number: int) -> dict[str, Any]:
        uuid = source.spec.uuid
        assert uuid is not None
        return {
            "name": name,
            "size": source.size(number),
            "type": "file",
            "id": number,
            "version": uuid.hex(),
        }

    # ---- what fsspec asks for ----

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """``name``, ``size`` in bytes, ``type``; of files also ``id`` (as
        ``Dataset`` counts) and ``version``. FileNotFoundError."""
        return self._entry(path)

    def ls(
        self, path: str, detail: bool = True, **options: Any
    ) -> list[Any]:
        """Entries of a folder, with ``mtime``; links to files are files, and
        links that lead nowhere or to folders have type ``link``."""
        name, source, inside = self._find(path)
        try:
            entries = source.entries(inside)
        except NotADirectoryError:
            found = self._entry(path)
            return [found] if detail else [found["name"]]
        prefix = f"{name}/{inside}/" if inside else f"{name}/"
        result = []
        for entry, kind, size, mtime in entries:
            what = {"name": prefix + entry, "size": 0, "type": kind}
            if kind != "directory":
                try:
                    number = source.lookup(f"{inside}/{entry}".lstrip("/"))
                    what = self._file(prefix + entry, source, number)
                except OSError:
                    what["size"] = size
            what["mtime"] = mtime
            result.append(what)
        return result if detail else [what["name"] for what in result]

    def modified(self, path: str) -> datetime:
        """When the file was changed last, as its origin said."""
        path = self._strip_protocol(path)
        parent = self._parent(path)
        for what in self.ls(parent):
            if what["name"].rsplit("/", 1)[-1] == path.rsplit("/", 1)[-1]:
                return datetime.fromtimestamp(what["mtime"], timezone.utc)
        raise FileNotFoundError(errno.ENOENT, "no such file", path)

    def ukey(self, path: str) -> str:
        """Changes whenever the file may have."""
        found = self._entry(path)
        return f"{found.get('version')}/{found['name']}"

    def cat_file(
        self,
        path: str,
        start: int | None = None,
        end: int | None = None,
        **options: Any,
    ) -> bytes:
        """Bytes ``start`` to ``end`` (negative: from the end) of a file."""
        name, source, inside = self._find(path)
        number = source.lookup(inside)
        first, last, _ = slice(start, end).indices(source.size(number))
        return source.read(number, first, max(0, last - first))

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> "SheafFile":
        if mode != "rb":
            raise OSError(errno.EROFS, "datasets are read-only", path)
        return SheafFile(self, path)


class SheafFile(AbstractBufferedFile):  # type: ignore[misc]
    """An open file. Keeps no copy of what it read: shared memory has it."""

    def __init__(self, fs: SheafFileSystem, path: str) -> None:
        _, self._source, inside = fs._find(path)
        self._number = self._source.lookup(inside)
        super().__init__(
            fs,
            path,
            mode="rb",
            cache_type="none",
            size=self._source.size(self._number),
        )

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self._source.read(self._number, start, max(0, end - start))


def open_fs(
    socket: str | None = None, timeout: float = 60.0
) -> SheafFileSystem:
    """The file system of a daemon, and ``sheaf://`` known to fsspec."""
    fsspec.register_implementation("sheaf", SheafFileSystem, clobber=True)
    system: SheafFileSystem = fsspec.filesystem(
        "sheaf", socket=socket, timeout=timeout
    )
    return system
