"""Operator backends by name. A backend is imported at first use, verified once, and says why when it can't be used."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from kvpact.attention.verify import verify
from kvpact.errors import InvalidConfig
from kvpact.ops.base import Operators
from kvpact.ops.compiled import is_built

Factory = Callable[[], Operators]


def _torch() -> Operators:
    from kvpact.ops.torch_ops import TorchOperators

    return TorchOperators()


def _reference() -> Operators:
    from kvpact.ops.reference import ReferenceOperators

    return ReferenceOperators()


def _native() -> Operators:
    from kvpact.ops.native import NativeOperators

    return NativeOperators()


class BackendRegistry:
    """Names -> factories. `get` hands out only what has been verified against the reference."""

    def __init__(self) -> None:
        self._factories: dict[str, Factory] = {}
        self._verified: dict[str, Operators] = {}

    @classmethod
    def default(cls) -> BackendRegistry:
        """A registry with the backends that kvpact brings."""
        registry = cls()
        registry.register("native", _native)
        registry.register("torch", _torch)
        registry.register("reference", _reference)
        return registry

    def register(self, name: str, factory: Factory) -> None:
        """Make a backend known. Nothing is imported or run before `get`; an earlier one of this name is replaced."""
        self._factories[name] = factory
        self._verified.pop(name, None)

    def resolve(self, name: str) -> Operators:
        """As `get`; "auto" is the compiled core, or torch with one warning where it is not built."""
        if name != "auto":
            return self.get(name)
        if is_built():
            return self.get("native")
        warnings.warn(
            "kvpact was installed without its compiled core: torch operators are used, which are slower and promise a tolerance, not bits. "
            "Install with a C++17 compiler, or say --switch ops=torch to choose them.",
            stacklevel=2,
        )
        return self.get("torch")

    def names(self) -> tuple[str, ...]:
        return tuple(self._factories)

    def get(self, name: str) -> Operators:
        """The backend, verified at first use.

        Raises InvalidConfig when there is none of this name or it can't be imported here, BackendUntrue when it does not
        do what it declares (and again at each further try: a refused backend is never handed out).
        """
        if name not in self._factories:
            raise InvalidConfig(f"no operators {name!r}", hint=f"operators are {', '.join(self._factories)}")
        if name not in self._verified:
            try:
                backend = self._factories[name]()
            except ImportError as error:
                raise InvalidConfig(f"operators {name!r} can't be used here: {error}", hint="use --switch ops=torch") from error
            verify(backend)
            self._verified[name] = backend
        return self._verified[name]
