"""The cache folder: entries that are complete or absent, whoever else is writing and whenever it was interrupted."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from platformdirs import user_cache_dir

from kvpact.errors import ModelCorrupt, ModelError

CACHE_VARIABLE = "KVPACT_CACHE"
MANIFEST = "kvpact.json"
_MANIFEST_VERSION = 1


def cache_root(cache_dir: Path | None = None) -> Path:
    """`cache_dir`, else the environment's KVPACT_CACHE, else the user's cache folder."""
    return Path(cache_dir or os.environ.get(CACHE_VARIABLE) or user_cache_dir("kvpact", appauthor=False)).expanduser().absolute()


@dataclass(frozen=True, kw_only=True)
class EntryKey:
    """name: of the model. sha256: of what it was made from. version: of what made it."""

    name: str
    sha256: str
    version: int

    @property
    def folder(self) -> str:
        return f"{self.name}-{self.sha256[:16]}-v{self.version}"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A complete folder of the store and its manifest."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def origin(self) -> str:
        return str(self.manifest["origin"])


#: Fills an empty folder and returns what the manifest shall say beside key and sizes; it must name "origin".
Maker = Callable[[Path], Mapping[str, Any]]


class Store:
    """Entries under `<root>/models`, by key.

    An entry is made in a temporary folder of the same file system under a lock, then renamed: another process sees all
    of it or nothing. What an interruption leaves behind is removed by the next process that makes the same entry.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._models = root / "models"
        self._locks = root / "locks"

    def find(self, key: EntryKey) -> Entry | None:
        """The entry, verified by the sizes of its files; None where there is none. Raises ModelCorrupt. Writes nothing."""
        path = self._models / key.folder
        if not path.is_dir():
            return None
        manifest = _read_manifest(path, key)
        for name, size in manifest["files"].items():
            found = (path / name).stat().st_size if (path / name).is_file() else None
            if found != size:
                state = "missing" if found is None else f"{found:,} bytes"
                raise ModelCorrupt(f"{path / name} is {state}, and was {size:,} bytes when it was made", hint=_delete(path))
        return Entry(path=path, manifest=manifest)

    def obtain(self, key: EntryKey, make: Maker) -> Entry:
        """The entry, made by `make` if there is none yet."""
        found = self.find(key)
        if found is not None:
            return found
        self._prepare()
        lock = FileLock(self._locks / f"{key.folder}.lock")
        _acquire(lock, key)
        try:
            return self.find(key) or self._make(key, make)
        finally:
            lock.release()

    def _prepare(self) -> None:
        try:
            self._models.mkdir(parents=True, exist_ok=True)
            self._locks.mkdir(exist_ok=True)
        except OSError as error:
            raise ModelError(
                f"the cache folder {self.root} can't be written: {error.strerror}", hint=f"set {CACHE_VARIABLE} to a folder that can"
            ) from error

    def _make(self, key: EntryKey, make: Maker) -> Entry:
        prefix = f".making-{key.folder}-"
        # The lock is ours: a folder of this prefix belongs to a process that is gone.
        for leftover in self._models.glob(f"{prefix}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=self._models))
        try:
            made = make(folder)
            sizes = {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
            manifest = {"manifest_version": _MANIFEST_VERSION, "name": key.name, "source_sha256": key.sha256, "version": key.version}
            text = json.dumps({**manifest, **made, "files": sizes}, indent=1)
            (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")
            folder.chmod(0o755)
            os.replace(folder, self._models / key.folder)
        except OSError as error:
            raise ModelError(f"{key.name} can't be written to {self.root}: {error}", hint=_room(self.root)) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        entry = self.find(key)
        assert entry is not None, key
        return entry


def _acquire(lock: FileLock, key: EntryKey) -> None:
    try:
        lock.acquire(timeout=0.2)
    except Timeout:
        print(f"another process is preparing {key.name}; waiting for it", file=sys.stderr)
        lock.acquire()


def _read_manifest(path: Path, key: EntryKey) -> dict[str, Any]:
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        sound = manifest["source_sha256"] == key.sha256 and manifest["version"] == key.version and manifest["files"] and manifest["origin"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelCorrupt(f"{path / MANIFEST} can't be read: {error!r}", hint=_delete(path)) from error
    if not sound:
        raise ModelCorrupt(f"{path / MANIFEST} belongs to another model", hint=_delete(path))
    return dict(manifest)


def _delete(path: Path) -> str:
    return f"delete the folder {path}; the next run makes it anew"


def _room(root: Path) -> str:
    free = shutil.disk_usage(root).free
    return f"{free / 1e9:.1f} GB are free there; make room, or set {CACHE_VARIABLE} to another folder"
