"""JSON over HTTP to one host and no other: no redirect is followed, no proxy is asked, and each request ends in time.

The standard library's client does none of these by itself, which is why it is used; a deadline for a whole request, however slowly
its answer drips, is added here.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from socket import SHUT_RDWR, socket
from threading import Timer
from typing import Any
from urllib.parse import urlsplit

from kvpact.doctor.errors import BrokeOff, TargetFailed, TargetUnusable

#: An answer of one row has some megabytes at most.
_MOST_BYTES = 256 << 20
#: Too many requests, not now: the server asks for a pause.
_BUSY = frozenset({429, 503})
_MOST_TRIES = 6
_FIRST_PAUSE = 0.5  # seconds


@dataclass(frozen=True, kw_only=True)
class Reply:
    """body: parsed JSON; None where the answer is none. text: how it begins, for messages."""

    status: int
    body: Any
    text: str

    @property
    def ok(self) -> bool:
        return self.status == 200 and isinstance(self.body, dict)

    def said(self) -> str:
        """The status with what the server gave as the reason, cut short."""
        error = self.body.get("error", self.body) if isinstance(self.body, dict) else self.text
        reason = error.get("message", "") if isinstance(error, dict) else error
        return f"status {self.status}" + (f", {str(reason)[:200]!r}" if reason else "")


class Client:
    """url: http or https, with the path that every request's path is added to. key: sent as a bearer token and never shown. timeout:
    seconds for one request, and for all pauses that the server asks for. Raises TargetUnusable for a URL that can't be meant."""

    def __init__(self, url: str, *, key: str | None = None, timeout: float = 60.0) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError as error:
            raise TargetUnusable(f"the URL has no port that can be: {error}", hint="http://host:port/v1") from error
        if parts.username or parts.password or parts.query or parts.fragment:
            raise TargetUnusable("the URL holds more than host and path", hint="give a key with --api-key-env NAME")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise TargetUnusable(f"{url!r} is no address of a server", hint="http://host:port/v1")
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, port
        self.path = parts.path.rstrip("/")
        self._key = key
        self._timeout = timeout
        self._answered = False

    def get(self, path: str) -> Reply:
        return self._until_served("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Reply:
        return self._until_served("POST", path, json.dumps(body).encode())

    def _until_served(self, method: str, path: str, body: bytes | None) -> Reply:
        """Waits as the server asks, as long as `timeout` lasts. Raises TargetFailed."""
        waited = 0.0
        for turn in range(_MOST_TRIES):
            reply, pause = self._once(method, path, body)
            if reply.status not in _BUSY:
                return reply
            pause = _FIRST_PAUSE * 2**turn if pause is None else pause
            if waited + pause > self._timeout:
                break
            time.sleep(pause)
            waited += pause
        raise BrokeOff(
            f"the server is busy: {reply.said()} after {turn + 1} tries and {waited:.1f} s of waiting",
            hint="examine it when it has less to do, or give a longer --timeout",
        )

    def _once(self, method: str, path: str, body: bytes | None) -> tuple[Reply, float | None]:
        """One request on a connection of its own, with the pause that its answer asks for."""
        connection = self._connection()
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Connection": "close"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        watchdog = None
        start = time.monotonic()
        try:
            connection.connect()
            watchdog = _watch(connection.sock, self._timeout)
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            data = answer.read(_MOST_BYTES + 1)
        except (OSError, HTTPException, ValueError) as error:
            raise self._failure(error, time.monotonic() - start) from None
        finally:
            if watchdog is not None:
                watchdog.cancel()
            connection.close()
        if len(data) > _MOST_BYTES or (answer.length or 0) > 0:
            raise self._failure(EOFError("it broke off in the middle of an answer"), time.monotonic() - start)
        self._answered = True
        return self._read(answer, data), _pause(answer)

    def _connection(self) -> HTTPConnection:
        if self._secure:
            return HTTPSConnection(self._host, self._port, timeout=self._timeout, context=ssl.create_default_context())
        return HTTPConnection(self._host, self._port, timeout=self._timeout)

    def _failure(self, error: Exception, seconds: float) -> BrokeOff:
        if seconds >= self._timeout * 0.99:
            return BrokeOff(f"no answer within {self._timeout:g} s", hint="is the server stuck? --timeout SECONDS gives it longer")
        hint = "is the server still running?" if self._answered else "is a server running at this address and port?"
        return BrokeOff(f"the connection failed: {type(error).__name__}: {error}", hint=hint)

    def _read(self, answer: HTTPResponse, data: bytes) -> Reply:
        if 300 <= answer.status < 400:
            raise TargetFailed(f"the server answers with a redirect, status {answer.status}", hint="give the address that it leads to")
        text = data.decode("utf-8", "replace")
        if self._key:
            text = text.replace(self._key, "***")
        try:
            body = json.loads(text)
        except ValueError:
            body = None
        return Reply(status=answer.status, body=body, text=text[:200])


def _watch(connected: socket, seconds: float) -> Timer:
    """Ends whatever waits on the socket after so long: its own timeout begins anew with each byte."""

    def hang_up() -> None:
        with suppress(OSError):  # it has ended by itself
            connected.shutdown(SHUT_RDWR)

    watchdog = Timer(seconds, hang_up)
    watchdog.daemon = True
    watchdog.start()
    return watchdog


def _pause(answer: HTTPResponse) -> float | None:
    """Seconds that Retry-After asks for, given as a number or as a date."""
    wanted = answer.getheader("Retry-After")
    if wanted is None:
        return None
    if wanted.strip().isdecimal():
        return float(wanted)
    try:
        return max(0.0, parsedate_to_datetime(wanted).timestamp() - time.time())
    except ValueError:
        return None
