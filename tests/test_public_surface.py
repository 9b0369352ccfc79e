"""What others may rely on: few names, and an import that costs nothing."""

import os
import subprocess
import sys

import pytest

import kvpact

NAMES = ["LLM", "CompletionOutput", "Engine", "EngineConfig", "KvpactError", "RequestOutput", "SamplingParams", "__version__"]


def loaded_after(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after `statement`."""
    script = f"import sys\n{statement}\nprint('\\n'.join(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    return set(ran.stdout.split())


def test_the_public_names_are_these() -> None:
    assert kvpact.__all__ == NAMES
    assert dir(kvpact) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_each_public_name_is_there(name: str) -> None:
    assert getattr(kvpact, name).__class__ in (type, str)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'LMM'"):
        kvpact.LMM  # noqa: B018  # the access is what is tested


def test_importing_kvpact_loads_nothing_heavy() -> None:
    loaded = loaded_after("import kvpact")
    assert "kvpact" in loaded
    assert loaded.isdisjoint({"torch", "numpy", "transformers", "tokenizers", "kvpact.engine", "kvpact.config"})


def test_small_public_names_load_no_torch() -> None:
    loaded = loaded_after("from kvpact import EngineConfig, KvpactError, SamplingParams")
    assert {"kvpact.config", "kvpact.errors", "kvpact.params"} <= loaded
    assert loaded.isdisjoint({"torch", "numpy", "transformers"})


def test_the_import_check_sees_what_is_loaded() -> None:
    assert "json.decoder" in loaded_after("import json")
