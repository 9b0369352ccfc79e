"""The Hugging Face hub. huggingface_hub is imported when it is needed, and whether the hub answers is known within seconds."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from kvpact.errors import HubUnreachable, ModelError, ModelNotFound, UnsupportedModel
from kvpact.model.builtin import HubFile
from kvpact.model.source_hash import sha256_of

#: A request's own limit, and the limit on all of it: name look-up has none of its own.
REQUEST_SECONDS = 3.0
PROBE_SECONDS = 4.5

_PATTERNS = ("config.json", "generation_config.json", "*.safetensors", "model.safetensors.index.json", "tokenizer*", "chat_template*")
#: Subfolders hold other formats; consolidated files hold the same weights under other names.
_IGNORED = ("*/*", "consolidated*")
_REACH = "connect this machine, set HF_ENDPOINT to a mirror, or give a folder or a .gguf file instead of a name"
_T = TypeVar("_T")


def fetch_hub_file(file: HubFile, target: Path, *, sha256: str, show: bool) -> None:
    """Fetch a file whose SHA-256 the hub confirms beforehand. Raises HubUnreachable for any reason why it can't."""
    label = f"{file.repo}@{file.revision[:8]}/{file.file}"
    scratch = target.parent / "hub"
    try:
        import huggingface_hub

        url = huggingface_hub.hf_hub_url(file.repo, file.file, revision=file.revision)
        found = _bounded(lambda: huggingface_hub.get_hf_file_metadata(url, timeout=REQUEST_SECONDS)).etag
        if found != sha256:
            raise HubUnreachable(f"{label}: the hub has SHA-256 {found}, not {sha256}", hint=_REACH)
        with _progress_bars(show):
            path = huggingface_hub.hf_hub_download(
                file.repo, file.file, revision=file.revision, local_dir=scratch, etag_timeout=REQUEST_SECONDS
            )
        got = sha256_of(Path(path))
        if got != sha256:
            raise HubUnreachable(f"{label}: what came has SHA-256 {got}, not {sha256}", hint=_REACH)
        Path(path).replace(target)
    except HubUnreachable:
        raise
    except ImportError:
        raise HubUnreachable(f"{label}: huggingface_hub is not installed", hint="pip install huggingface_hub") from None
    except Exception as error:  # huggingface_hub changes its HTTP library, and with it what is raised
        raise HubUnreachable(f"{label}: {_first_line(error)}", hint=_REACH) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def snapshot(repo: str, revision: str | None, *, show: bool) -> Path:
    """Fetch a repository's model files; the folder, in the hub's own cache.

    Raises ModelNotFound, UnsupportedModel for a repository without safetensors, HubUnreachable.
    """
    import huggingface_hub
    from huggingface_hub import errors

    label = repo if revision is None else f"{repo}@{revision}"
    try:
        info = _bounded(lambda: huggingface_hub.HfApi().model_info(repo, revision=revision, timeout=REQUEST_SECONDS))
        names = [item.rfilename for item in info.siblings or ()]
        if not any(name.endswith(".safetensors") for name in names):
            raise UnsupportedModel(
                f"{label} has no *.safetensors among its {len(names)} files", hint="pickled weights are not read; choose another repository"
            )
        with _progress_bars(show):
            path = _download(repo, revision, local_only=False)
    except ModelError:
        raise
    except errors.GatedRepoError as error:
        raise ModelError(
            f"{label} is gated: {_first_line(error)}", hint="accept its terms on the hub and log in (hf auth login)"
        ) from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise ModelNotFound(f"the hub has no {label}, or not for you", hint="check the name; log in if it is private") from error
    except Exception as error:  # huggingface_hub changes its HTTP library, and with it what is raised
        raise HubUnreachable(
            f"{label} is no folder here and can't be fetched; tried {_endpoint()}: {_first_line(error)}", hint=_REACH
        ) from error
    return path


def local_snapshot(repo: str, revision: str | None) -> Path | None:
    """The repository's folder on this machine, if it was fetched before; no request is made. It may lack files."""
    try:
        return _download(repo, revision, local_only=True)
    except ImportError:
        raise HubUnreachable(f"{repo}: huggingface_hub is not installed", hint="pip install huggingface_hub") from None
    except (OSError, ValueError):
        return None


def _download(repo: str, revision: str | None, *, local_only: bool) -> Path:
    import huggingface_hub

    path = huggingface_hub.snapshot_download(
        repo,
        revision=revision,
        allow_patterns=list(_PATTERNS),
        ignore_patterns=list(_IGNORED),
        etag_timeout=REQUEST_SECONDS,
        local_files_only=local_only,
    )
    return Path(path)


def _bounded(ask: Callable[[], _T]) -> _T:
    """The answer, or HubUnreachable after PROBE_SECONDS. The thread that still waits dies with the process."""
    answers: list[_T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(ask())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True, name="kvpact-hub-probe")
    thread.start()
    thread.join(PROBE_SECONDS)
    if failures:
        raise failures[0]
    if not answers:
        raise HubUnreachable(f"{_endpoint()} did not answer within {PROBE_SECONDS} s", hint=_REACH)
    return answers[0]


def _endpoint() -> str:
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


@contextmanager
def _progress_bars(show: bool) -> Iterator[None]:
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if show or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
