"""A small OpenAI-compatible server for tests: on the loopback interface, in a thread, with any engine behind it and any mischief in
front of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any, Protocol, runtime_checkable

import numpy as np

SERVED = "tiny"


class Engine(Protocol):
    """row: log-probabilities [vocab] after `tokens`, and how many of those were taken over from earlier requests."""

    vocab_size: int

    def row(self, tokens: Sequence[int], salt: str) -> tuple[np.ndarray, int]: ...


@runtime_checkable
class Answering(Protocol):
    """An engine that is told of each answer of several tokens."""

    def answered(self, prompt: Sequence[int], answer: Sequence[int], salt: str) -> None: ...


class Toy:
    """Log-probabilities that depend on every token, without a model. Hits are counted as a cache of whole blocks would count them."""

    def __init__(self, vocab_size: int = 300, block_size: int = 16) -> None:
        self.vocab_size = vocab_size
        self._block = block_size
        self._seen: set[tuple[str, tuple[int, ...]]] = set()

    def row(self, tokens: Sequence[int], salt: str) -> tuple[np.ndarray, int]:
        context = tuple(tokens)
        starts = [context[:stop] for stop in range(self._block, len(context), self._block)]
        hit = max((len(start) for start in starts if (salt, start) in self._seen), default=0)
        whole = range(self._block, len(context) + 1, self._block)
        self._seen.update((salt, context[:stop]) for stop in whole)
        seed = int.from_bytes(blake2b(repr(context).encode(), digest_size=8).digest(), "big")
        scores = np.random.default_rng(seed).normal(0, 2, self.vocab_size)
        return scores - np.log(np.exp(scores).sum()), hit


@dataclass(kw_only=True)
class Sent:
    """What the server answers one request with. cut: bytes after which it hangs up. drip: seconds between bytes. hang: answer never."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int | None = None
    drip: float = 0.0
    hang: bool = False


@dataclass(kw_only=True)
class Asked:
    path: str
    body: dict[str, Any]
    headers: Mapping[str, str]


#: (number of the request, what was asked) -> what is answered instead, or None for the usual answer.
Mischief = Callable[[int, Asked], "Sent | None"]


@dataclass(kw_only=True)
class Manners:
    """What this server takes and tells. top: log-probabilities at most. names: of tokens in answers, "ids" where asked for, else text."""

    ids: bool = True
    names: str = "ids"
    top: int = 20
    usage: bool = True
    salt: bool = True
    completions: bool = True
    chat: bool = False
    max_len: int | None = 512
    key: str | None = None
    extra_prompt_tokens: int = 0
    mischief: Mischief | None = None


class Served:
    """One running server. asked: every request so far."""

    def __init__(self, engine: Engine, manners: Manners) -> None:
        self.engine, self.manners = engine, manners
        self.asked: list[Asked] = []
        self.stopped = Event()
        self._lock = Lock()
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer({})

            def do_POST(self) -> None:
                self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _answer(self, body: dict[str, Any]) -> None:
                with suppress(BrokenPipeError, ConnectionResetError):
                    served.send(self, served.answer(Asked(path=self.path, body=body, headers=dict(self.headers))))

            def log_message(self, *_: object) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

        self._server = Quiet(("127.0.0.1", 0), Handler)
        self.host = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.url = f"{self.host}/v1"
        Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        if not self.stopped.is_set():
            self.stopped.set()
            self._server.shutdown()
            self._server.server_close()

    def answer(self, asked: Asked) -> Sent:
        with self._lock:
            self.asked.append(asked)
            number = len(self.asked)
        mischief = self.manners.mischief(number, asked) if self.manners.mischief else None
        return mischief or self.usual(asked)

    def usual(self, asked: Asked) -> Sent:
        manners = self.manners
        if manners.key is not None and asked.headers.get("Authorization") != f"Bearer {manners.key}":
            return _error(401, "wrong key")
        if asked.path == "/v1/models":
            card = {"id": SERVED, "object": "model", "owned_by": "tests"}
            return _json({"data": [card | ({"max_model_len": manners.max_len} if manners.max_len else {})]})
        if asked.path == "/v1/completions" and manners.completions:
            return self._completion(asked.body)
        if asked.path == "/v1/chat/completions" and manners.chat:
            return self._chat(asked.body)
        return _error(404, "no such path")

    def _row(self, body: Mapping[str, Any], prompt: Any) -> tuple[list[tuple[int, float]], dict[str, Any]] | Sent:
        """The likeliest next tokens, and the usage."""
        if isinstance(prompt, list) and not self.manners.ids:
            return _error(400, "prompt must be text")
        tokens = list(prompt.encode()) if isinstance(prompt, str) else prompt
        if not tokens or not all(isinstance(token, int) and 0 <= token < self.engine.vocab_size for token in tokens):
            return _error(400, "prompt has tokens that do not exist")
        if self.manners.max_len and len(tokens) >= self.manners.max_len:
            return _error(400, "prompt is too long")
        salt = body.get("cache_salt", "none") if self.manners.salt else "none"
        if not isinstance(salt, str) or not salt:
            return _error(400, "cache_salt must be a string that is not empty")
        with self._lock:
            row, cached = self.engine.row(tokens, salt)
        best = [(int(token), float(row[token])) for token in np.argsort(-row)]
        usage: dict[str, Any] = {"prompt_tokens": len(tokens) + self.manners.extra_prompt_tokens, "completion_tokens": 1}
        if self.manners.usage:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        return best, usage

    def _completion(self, body: Mapping[str, Any]) -> Sent:
        top = body.get("logprobs", 0)
        if top > self.manners.top:
            return _error(400, f"at most {self.manners.top} logprobs")
        told = self._row(body, body["prompt"])
        if isinstance(told, Sent):
            return told
        best, usage = told
        rows = [best]
        prompt = body["prompt"]
        while len(rows) < body.get("max_tokens", 1) and not isinstance(prompt, str):  # greedy
            further = self._row(body, [*prompt, *(row[0][0] for row in rows)])
            if isinstance(further, Sent):
                break
            rows.append(further[0])
        if len(rows) > 1 and isinstance(self.engine, Answering):
            self.engine.answered(prompt, [row[0][0] for row in rows], body.get("cache_salt", "none") if self.manners.salt else "none")
        by_id = self.manners.names == "ids" and body.get("return_tokens_as_token_ids")
        named = [{f"token_id:{token}" if by_id else f"<{token}>": score for token, score in row[:top]} for row in rows]
        drawn = [next(iter(row)) for row in named]
        logprobs = {"tokens": drawn, "token_logprobs": [row[text] for row, text in zip(named, drawn, strict=True)], "top_logprobs": named}
        return _json({"choices": [{"index": 0, "text": "".join(drawn), "logprobs": logprobs}], "usage": usage})

    def _chat(self, body: Mapping[str, Any]) -> Sent:
        top = body.get("top_logprobs", 0)
        if top > self.manners.top:
            return _error(400, f"at most {self.manners.top} logprobs")
        told = self._row(body, f"<user>{body['messages'][0]['content']}<assistant>")
        if isinstance(told, Sent):
            return told
        best, usage = told
        listed = [{"token": f"<{token}>", "logprob": score} for token, score in best[:top]]
        content = [{**listed[0], "top_logprobs": listed}]
        return _json({"choices": [{"index": 0, "message": {"content": ""}, "logprobs": {"content": content}}], "usage": usage})

    def send(self, handler: BaseHTTPRequestHandler, sent: Sent) -> None:
        if sent.hang:
            self.stopped.wait(30)
            return
        handler.send_response(sent.status)
        for name, value in sent.headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(sent.body)))
        handler.end_headers()
        if sent.drip:
            for byte in sent.body:
                handler.wfile.write(bytes([byte]))
                time.sleep(sent.drip)
        else:
            handler.wfile.write(sent.body[: sent.cut])


def _json(body: object, status: int = 200) -> Sent:
    return Sent(status=status, body=json.dumps(body).encode(), headers={"Content-Type": "application/json"})


def _error(status: int, message: str) -> Sent:
    return _json({"error": {"message": message, "code": status}}, status)


@contextmanager
def serving(engine: Engine | None = None, **manners: Any) -> Iterator[Served]:
    """Runs until the block ends."""
    served = Served(engine or Toy(), Manners(**manners))
    try:
        yield served
    finally:
        served.stop()
