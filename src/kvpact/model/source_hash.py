"""SHA-256 of model files; of a large one it is remembered, by place, size and time of change."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from kvpact.errors import ModelCorrupt
from kvpact.model.progress import Advance, silent

_CHUNK = 1 << 20


def sha256_of(path: Path, *, advance: Advance = silent) -> str:
    """SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    total, done = path.stat().st_size, 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            advance(done, total)
    return digest.hexdigest()


def verify_sha256(path: Path, expected: str) -> None:
    """Raises ModelCorrupt unless the file has the checksum."""
    found = sha256_of(path)
    if found != expected:
        raise ModelCorrupt(
            f"{path.name} ({path.stat().st_size:,} bytes) has SHA-256 {found}, not {expected}",
            hint="fetch it again; if it stays so, the index serves another file than the one this name stands for",
        )


def remembered_sha256(path: Path, root: Path, advance: Advance = silent) -> str:
    """SHA-256 of `path`, from a note under `root` while size and time of change are as they were. A note that can't be
    read or written only costs time."""
    stat = path.stat()
    place = str(path.absolute())
    state = {"path": place, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    note = root / "sources" / f"{hashlib.sha256(place.encode()).hexdigest()[:16]}.json"
    try:
        known = json.loads(note.read_text(encoding="utf-8"))
        if {name: known[name] for name in state} == state:
            return str(known["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    sha256 = sha256_of(path, advance=advance)
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        partial = note.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps({**state, "sha256": sha256}), encoding="utf-8")
        partial.replace(note)
    except OSError:
        pass
    return sha256
