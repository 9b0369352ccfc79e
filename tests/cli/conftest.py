"""The command as a person runs it, and a tiny model for it to run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kvpact.cli.main import main
from tiny_models import save_tiny_model

#: (exit code, stdout, stderr) of `kvpact ARGUMENTS`.
Ran = tuple[int, str, str]
Kvpact = Callable[..., Ran]

CHAT_TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"


@pytest.fixture
def kvpact(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Kvpact:
    """kvpact("run", "--help") runs the real entry point in this process."""
    # 140 columns: what a help page shows must not depend on who runs the tests.
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setenv("TERM", "dumb")

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr("sys.argv", ["kvpact", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture(scope="session")
def tiny_chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random-weight Llama with a chat template; its text is noise, its path is the real one."""
    folder = tmp_path_factory.mktemp("tiny-chat")
    save_tiny_model(folder, "llama")
    # A token is a byte here, so the pair's long prompt needs more positions than the other tests' models have.
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 2048}))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder
