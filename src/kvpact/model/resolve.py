"""From a model's name to a folder with its files.

One rule: a built-in name stands for one GGUF by its SHA-256, whoever served it; a hub id stands for the commit that was
first fetched to this machine; a path stands for itself.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvpact.errors import ModelError, ModelNotFound
from kvpact.model.builtin import BUILTIN_MODELS, DEFAULT_MODEL, BuiltinModel
from kvpact.model.folder import check_folder
from kvpact.model.progress import progress_bar
from kvpact.model.source_hash import remembered_sha256
from kvpact.model.store import Entry, EntryKey, Store, cache_root

_HUB_ID = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+))?")
#: Part of the key of a converted model. Raise it whenever a converted file would differ in any bit.
CONVERTER_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """path: a folder with config.json, *.safetensors and tokenizer.json.

    origin: where the weights came from. sha256: of the file they were converted from, None where there was no conversion.
    """

    name: str
    path: Path
    origin: str
    sha256: str | None = None


def resolve(name: str = DEFAULT_MODEL, *, cache_dir: Path | None = None, progress: bool = True) -> ModelFiles:
    """Find, and where necessary fetch and convert, a model.

    name: a built-in name, a folder, a `.gguf` file, or a hub id (`organisation/model`, with `@revision` if wanted).
    cache_dir: where converted models are kept (default: KVPACT_CACHE, else the user's cache folder). progress: bars on stderr.
    Raises ModelNotFound, ModelCorrupt, UnsupportedModel, HubUnreachable; other ModelError when the cache can't be written.
    """
    store = Store(cache_root(cache_dir))
    if name in BUILTIN_MODELS:
        return _builtin(BUILTIN_MODELS[name], store, progress)
    path = Path(name).expanduser()
    if name and path.is_dir():
        check_folder(path)
        return ModelFiles(name=name, path=path, origin=f"folder:{path.absolute()}")
    if path.is_file():
        return _gguf_file(path, store, progress)
    match = _HUB_ID.fullmatch(name)
    if match is not None and not name.endswith(".gguf"):
        return _hub(name, match["repo"], match["revision"], progress)
    raise _not_found(name)


def fetch_source(name: str, *, cache_dir: Path | None = None, progress: bool = True) -> Path:
    """A built-in model's GGUF, fetched and checked but not converted; works for architectures that can't be run yet."""
    if name not in BUILTIN_MODELS:
        raise _not_found(name)
    model = BUILTIN_MODELS[name]
    entry = _source(model, Store(cache_root(cache_dir)), progress)
    return entry.path / f"{name}.gguf"


def _builtin(model: BuiltinModel, store: Store, show: bool) -> ModelFiles:
    key = EntryKey(name=model.name, sha256=model.gguf_sha256, version=CONVERTER_VERSION)

    def make(folder: Path) -> Mapping[str, Any]:
        from kvpact.model.fetch import fetch_gguf
        from kvpact.model.gguf_arch import architecture_of

        # Refused before a byte is fetched.
        architecture_of(model.architecture, model.name)
        kept = store.find(_source_key(model))
        if kept is not None:
            _convert(kept.path / f"{model.name}.gguf", folder, model.name, show)
            return _manifest(model, kept.origin)
        source, origin = fetch_gguf(model, folder, show=show)
        _convert(source, folder, model.name, show)
        source.unlink()
        return _manifest(model, origin)

    return _model_files(store.obtain(key, make), model.name)


def _source_key(model: BuiltinModel) -> EntryKey:
    return EntryKey(name=f"{model.name}-gguf", sha256=model.gguf_sha256, version=0)


def _source(model: BuiltinModel, store: Store, show: bool) -> Entry:
    def make(folder: Path) -> Mapping[str, Any]:
        from kvpact.model.fetch import fetch_gguf

        _, origin = fetch_gguf(model, folder, show=show)
        return _manifest(model, origin)

    return store.obtain(_source_key(model), make)


def _gguf_file(path: Path, store: Store, show: bool) -> ModelFiles:
    if path.suffix != ".gguf":
        raise ModelNotFound(
            f"{path} is neither a folder nor a .gguf file", hint="give the folder that holds config.json and *.safetensors, or a .gguf file"
        )
    with progress_bar(f"reading {path.name}", show=show) as advance:
        sha256 = remembered_sha256(path, store.root, advance)
    key = EntryKey(name=re.sub(r"[^\w.-]", "_", path.stem), sha256=sha256, version=CONVERTER_VERSION)
    origin = f"file:{path.absolute()}"

    def make(folder: Path) -> Mapping[str, Any]:
        _convert(path, folder, path.name, show)
        return {"origin": origin}

    return _model_files(store.obtain(key, make), str(path))


def _hub(name: str, repo: str, revision: str | None, show: bool) -> ModelFiles:
    # huggingface_hub takes a noticeable part of a second to import.
    from kvpact.model.hub import local_snapshot, snapshot

    path = local_snapshot(repo, revision)
    if path is None or not _usable(path):
        path = snapshot(repo, revision, show=show)
        check_folder(path)
    # The hub's cache names a snapshot's folder after its commit.
    return ModelFiles(name=name, path=path, origin=f"hub:{repo}@{path.name}")


def _usable(path: Path) -> bool:
    """Whether a folder from an earlier fetch has all that is needed; another program may have taken a part only."""
    try:
        check_folder(path)
    except ModelError:
        return False
    return (path / "tokenizer.json").is_file()


def _convert(source: Path, folder: Path, label: str, show: bool) -> None:
    from kvpact.model.gguf_convert import convert_gguf

    with progress_bar(f"converting {label}", show=show) as advance:
        convert_gguf(source, folder, progress=advance)


def _model_files(entry: Entry, name: str) -> ModelFiles:
    return ModelFiles(name=name, path=entry.path, origin=entry.origin, sha256=str(entry.manifest["source_sha256"]))


def _not_found(name: str) -> ModelNotFound:
    from kvpact.model.gguf_arch import ARCHITECTURES

    can_run = sorted(built_in for built_in, model in BUILTIN_MODELS.items() if model.architecture in ARCHITECTURES)
    close = difflib.get_close_matches(name, can_run, n=3, cutoff=0.5)
    meant = f"did you mean {' or '.join(close)}? " if close else ""
    return ModelNotFound(
        f"no model {name!r}: there is no such folder or file, and it is neither a built-in name nor a hub id (organisation/model)",
        hint=f"{meant}built-in names: {', '.join(can_run)}",
    )


def _manifest(model: BuiltinModel, origin: str) -> Mapping[str, Any]:
    return {"origin": origin} if model.notice is None else {"origin": origin, "notice": model.notice}
