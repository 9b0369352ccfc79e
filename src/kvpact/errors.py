"""Typed errors. Each has a code, the numbers, the consequence and the way out."""

from __future__ import annotations

from typing import ClassVar


class KvpactError(Exception):
    """Base of every error that a user can cause or must act on.

    message: what happened, with numbers. hint: the way out. numbers: the same figures for programs.
    """

    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str, **numbers: int | float | str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.numbers = numbers

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]\nhint: {self.hint}"


class InvalidConfig(KvpactError):
    """A setting has a value that can't work."""

    code = "invalid-config"


class UnreadableFile(KvpactError):
    """A file that the user named can't be read, or holds something else."""

    code = "unreadable-file"


class UnknownSwitch(KvpactError):
    """A switch, or a value of one, that does not exist."""

    code = "unknown-switch"


class UnknownInjectionPoint(KvpactError):
    """A fault-injection point that does not exist."""

    code = "unknown-injection-point"


class BackendUntrue(KvpactError):
    """An operator backend does not do what it declares; it is refused before it can touch a request."""

    code = "backend-untrue"


class LawBroken(KvpactError):
    """A law of the cache contract does not hold. A defect of kvpact, never of a request."""

    code = "law-broken"


class GateViolation(KvpactError):
    """The gate in front of the cache found a write, or a read, that is not what the state says. Nothing of the step counts."""

    code = "gate-violation"


class NotFinite(KvpactError):
    """Numbers that must be finite are not, so no answer can be taken from them (law `finite`)."""

    code = "not-finite"


class CacheFull(KvpactError):
    """The pool has too few free blocks now. The scheduler answers by preempting."""

    code = "cache-full"


class ModelError(KvpactError):
    """A model can't be used."""

    code = "model"


class ModelNotFound(ModelError):
    """No folder, file, built-in name or reachable hub id of this name."""

    code = "model-not-found"


class HubUnreachable(ModelError):
    """A hub or a package index is needed and can't be reached."""

    code = "hub-unreachable"


class ModelCorrupt(ModelError):
    """A model file is truncated, has the wrong checksum, or lacks a tensor."""

    code = "model-corrupt"


class UnsupportedModel(ModelError):
    """An architecture, or a feature of one, that the decoder does not have."""

    code = "unsupported-model"


class RequestError(KvpactError):
    """One request is refused; no other is disturbed."""

    code = "request"


class EmptyPrompt(RequestError):
    """A prompt without tokens."""

    code = "empty-prompt"


class PromptTooLong(RequestError):
    """More tokens than `max_model_len` leaves room for."""

    code = "prompt-too-long"


class RequestTooLarge(RequestError):
    """A request that the whole pool could never hold."""

    code = "request-too-large"


class InvalidParameter(RequestError):
    """A request field that is unknown or out of range."""

    code = "invalid-parameter"


class DuplicateRequest(RequestError):
    """A request id that is in use."""

    code = "duplicate-request"
