"""The hub, played by a local server; huggingface_hub itself is the real one, in a process of its own."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kvpact.model.gguf_convert import convert_gguf

COMMIT = "c" * 40


class Hub:
    """files: by repository and path. etags: to be told instead of a file's own. requests: paths that were asked for."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.etags: dict[str, str] = {}
        self.requests: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.answer(self, body=True)

            def do_HEAD(self) -> None:
                hub.answer(self, body=False)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, handler: BaseHTTPRequestHandler, *, body: bool) -> None:
        self.requests.append(handler.path)
        path = handler.path.split("?")[0]
        if path.startswith("/api/models/"):
            content = self.describe(path.removeprefix("/api/models/"))
        else:
            repo, _, rest = path[1:].partition("/resolve/")
            content = self.files.get(repo, {}).get(rest.partition("/")[2])
        if content is None:
            handler.send_response(404)
            handler.send_header("X-Error-Code", "RepoNotFound")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        etag = self.etags.get(path.rpartition("/")[2], hashlib.sha256(content).hexdigest())
        handler.send_header("ETag", f'"{etag}"')
        handler.send_header("X-Repo-Commit", COMMIT)
        handler.end_headers()
        if body:
            handler.wfile.write(content)

    def describe(self, rest: str) -> bytes | None:
        repo, _, tail = rest.partition("/revision/")
        name, _, listing = repo.partition("/tree/")
        files = self.files.get(name)
        if files is None:
            return None
        if listing:
            tree = [{"type": "file", "path": path, "size": len(data), "oid": "0" * 40} for path, data in files.items()]
            return json.dumps(tree).encode()
        del tail
        return json.dumps({"id": name, "sha": COMMIT, "siblings": [{"rfilename": path} for path in files]}).encode()


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.server.shutdown()
    hub.server.server_close()


def ask(code: str, url: str, home: Path) -> tuple[str, float]:
    """Run `code` with the hub at `url`; its output, and the seconds that its last statement took."""
    program = f"""
import time
from pathlib import Path
from kvpact.errors import KvpactError
from kvpact.model.builtin import HubFile
from kvpact.model.hub import fetch_hub_file
from kvpact.model.resolve import resolve
started = time.perf_counter()
try:
    {code}
except KvpactError as error:
    print(type(error).__name__, error)
print(time.perf_counter() - started)
"""
    environment = {**os.environ, "HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    *lines, seconds = done.stdout.strip().splitlines()
    return "\n".join(lines), float(seconds)


RESOLVE = "files = resolve('org/tiny', progress=False); print(files.path, files.origin, sorted(p.name for p in files.path.iterdir()))"


def test_a_hub_id_fetches_model_files_and_nothing_else_and_later_asks_nothing(hub, tiny_llama, tmp_path):
    folder = tmp_path / "converted"
    folder.mkdir()
    convert_gguf(tiny_llama, folder)
    others = ("README.md", "pytorch_model.bin", "consolidated.safetensors", "original/x.safetensors", "onnx/config.json")
    hub.files["org/tiny"] = {path.name: path.read_bytes() for path in folder.iterdir()} | dict.fromkeys(others, b"x")
    first, _ = ask(RESOLVE, hub.url, tmp_path / "home")
    assert f"snapshots/{COMMIT} hub:org/tiny@{COMMIT}" in first
    assert first.endswith(str(sorted(path.name for path in folder.iterdir())))
    hub.requests.clear()
    again, _ = ask(RESOLVE, hub.url, tmp_path / "home")
    assert again == first
    assert hub.requests == []


def test_pickled_weights_on_the_hub_are_refused_before_they_are_fetched(hub, tmp_path):
    hub.files["org/tiny"] = {"config.json": b"{}", "pytorch_model.bin": b"x"}
    out, _ = ask(RESOLVE, hub.url, tmp_path / "home")
    assert "UnsupportedModel org/tiny has no *.safetensors among its 2 files" in out
    assert not any("resolve" in path for path in hub.requests)


def test_a_name_that_the_hub_does_not_have_is_not_found(hub, tmp_path):
    out, _ = ask(RESOLVE, hub.url, tmp_path / "home")
    assert "ModelNotFound the hub has no org/tiny" in out


def test_a_hub_that_refuses_connections_is_named_at_once(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    out, seconds = ask(RESOLVE, url, tmp_path / "home")
    assert f"HubUnreachable org/tiny is no folder here and can't be fetched; tried {url}" in out
    assert "set HF_ENDPOINT to a mirror" in out
    assert seconds < 20


def test_a_hub_that_takes_connections_and_never_answers_is_given_up_after_seconds(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        out, seconds = ask(RESOLVE, f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path / "home")
    assert "HubUnreachable" in out
    assert 1 < seconds < 20


FILE = f"HubFile(repo='org/gguf', revision='{COMMIT}', file='m.gguf')"


def test_a_file_is_fetched_from_the_hub_only_when_its_checksum_is_the_right_one(hub, tmp_path):
    hub.files["org/gguf"] = {"m.gguf": b"weights"}
    right, wrong = hashlib.sha256(b"weights").hexdigest(), "0" * 64
    out, _ = ask(f"fetch_hub_file({FILE}, Path({str(tmp_path / 'm.gguf')!r}), sha256={right!r}, show=False)", hub.url, tmp_path / "home")
    assert out == ""
    assert (tmp_path / "m.gguf").read_bytes() == b"weights"

    out, _ = ask(f"fetch_hub_file({FILE}, Path({str(tmp_path / 'n.gguf')!r}), sha256={wrong!r}, show=False)", hub.url, tmp_path / "home")
    assert f"HubUnreachable org/gguf@cccccccc/m.gguf: the hub has SHA-256 {right}, not {wrong}" in out
    assert not (tmp_path / "n.gguf").exists()
    assert not (tmp_path / "hub").exists()

    hub.etags["m.gguf"] = wrong
    out, _ = ask(f"fetch_hub_file({FILE}, Path({str(tmp_path / 'n.gguf')!r}), sha256={wrong!r}, show=False)", hub.url, tmp_path / "home")
    assert f"what came has SHA-256 {right}, not {wrong}" in out
    assert not (tmp_path / "n.gguf").exists()
    assert not (tmp_path / "hub").exists()
