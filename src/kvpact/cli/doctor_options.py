"""What `kvpact doctor TARGET` can be told: how the target is loaded, which rules look, and where the report goes."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvpact.cli.interrupt import interruptible
from kvpact.errors import InvalidConfig, UnreadableFile

if TYPE_CHECKING:
    from kvpact.doctor.finding import Report
    from kvpact.doctor.resolve import Options
    from kvpact.doctor.target import Target

TargetArgument = Annotated[
    str, typer.Argument(metavar="TARGET", help="hf:FOLDER, vllm:FOLDER, a model's name, module:attribute or http://host:port/v1.")
]


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """How a target is loaded or reached."""

    attention: Annotated[str | None, typer.Option(metavar="NAME", help="For hf: eager, sdpa, ...")] = None
    cache: Annotated[
        str | None, typer.Option(metavar="NAME", help="For hf: dynamic, recording, static, fp8, ..., or your own as module:factory.")
    ] = None
    dtype: Annotated[str | None, typer.Option(metavar="NAME", help="float32, bfloat16 or float16; as stored by default.")] = None
    device: Annotated[str | None, typer.Option(metavar="NAME", help="For hf: cpu by default; cuda, cuda:1, ...")] = None
    threads: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="For hf: or a callable: threads of torch; one for small models.")
    ] = None
    switch: Annotated[
        list[str] | None, typer.Option("--switch", metavar="NAME=VALUE", help="For kvpact's own engine; may be repeated.")
    ] = None
    model: Annotated[str | None, typer.Option(metavar="NAME", help="For a URL: as the server lists it; the first one by default.")] = None
    api_key_env: Annotated[str | None, typer.Option(metavar="NAME", help="For a URL: the environment variable with the key.")] = None
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", min=0.1, help="For a URL: of one request; 60 by default.")] = None
    vocab: Annotated[
        int | None, typer.Option(metavar="N", min=32, help="For a URL or a callable that does not tell: token ids below N exist.")
    ] = None

    def open(self, target: str, *, quiet: bool) -> Target:
        """quiet: without a word on stderr of what is waited for. Raises TargetUnusable, InvalidConfig."""
        from kvpact.cli.doctor_progress import opened, opening
        from kvpact.doctor.resolve import resolve

        options = self.options()
        if not quiet:
            opening(target, options)
        with interruptible():
            engine = resolve(target, options)
        if not quiet:
            opened(target)
        return engine

    def options(self) -> Options:
        """Raises InvalidConfig."""
        from kvpact.doctor.resolve import Options

        return Options(
            attention=self.attention,
            cache=self.cache,
            dtype=self.dtype,
            device=self.device,
            threads=self.threads,
            alone=True,
            switches=tuple(self.switch or ()),
            model=self.model,
            api_key=_key(self.api_key_env),
            timeout=self.timeout,
            vocab=self.vocab,
        )


def _key(name: str | None) -> str | None:
    """Raises InvalidConfig for a variable that is not set."""
    if name is None:
        return None
    if not os.environ.get(name):
        raise InvalidConfig(f"the environment variable {name} holds no key", hint="set it, or leave --api-key-env out")
    return os.environ[name]


@dataclass(frozen=True, kw_only=True)
class ChoiceOptions:
    """Which rules, and how hard."""

    select: Annotated[
        list[str] | None,
        typer.Option(metavar="RULES", help="Only rules whose code starts so, or of this name: KV1,KV205. May be repeated."),
    ] = None
    ignore: Annotated[list[str] | None, typer.Option(metavar="RULES", help="All but these, written the same way.")] = None
    expected: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Rules known to fail, with reasons; else \\[tool.kvpact.doctor] in pyproject.toml."),
    ] = None
    programs: Annotated[int, typer.Option(metavar="N", min=0, help="Draw so many programs besides, and run them.")] = 0
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of every draw.")] = 0
    budget: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Start no program after this long; what was not reached is named.")
    ] = None


#: The way out where something can't be written.
WRITABLE = "name a place that can be written to"


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Where the report goes beside the terminal."""

    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="The report as JSON; - is stdout, in place of the text.")] = (
        None
    )
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="The report as JUnit XML.")] = None
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="The report as one page that needs nothing beside it.")] = None
    github: Annotated[bool, typer.Option("--github", help="Annotations for GitHub Actions, on stdout.")] = False
    save_programs: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write each finding's program there, for replay and as Python.")
    ] = None
    times: Annotated[bool, typer.Option("--times", help="Put seconds into JSON and JUnit; equal runs then differ.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr; CI=true is the same.")] = False

    def check(self) -> None:
        """Before an examination that takes minutes. Raises UnreadableFile for a place where nothing can be written, InvalidConfig for two
        forms on one stdout."""
        if self.github and str(self.json) == "-":
            raise InvalidConfig("--json - and --github both write to stdout", hint="give --json a file")
        for file in (self.json, self.junit, self.html):
            if file is not None and str(file) != "-" and (file.is_dir() or not file.absolute().parent.is_dir()):
                said = "is a folder" if file.is_dir() else "lies in a folder that does not exist"
                raise UnreadableFile(f"the report can't be written: {file} {said}", hint=WRITABLE)

    def write(self, report: Report) -> None:
        """The terminal's first, for it can't fail. Raises UnreadableFile."""
        if str(self.json) != "-":
            _show(report)
        try:
            self._write(report)
        except OSError as error:
            raise UnreadableFile(f"the report can't be written: {error}", hint=WRITABLE) from error

    def _write(self, report: Report) -> None:
        from kvpact.doctor.report.document import as_json
        from kvpact.doctor.report.github import workflow_commands
        from kvpact.doctor.report.html import as_html
        from kvpact.doctor.report.junit import as_junit
        from kvpact.doctor.saved import write_programs

        if self.json is not None and str(self.json) != "-":
            self.json.write_text(as_json(report, seconds=self.times), encoding="utf-8")
        if self.junit is not None:
            self.junit.write_text(as_junit(report, seconds=self.times), encoding="utf-8")
        if self.html is not None:
            self.html.write_text(as_html(report), encoding="utf-8")
        if self.save_programs is not None:
            for file in write_programs(report, self.save_programs):
                print(f"wrote {file}", file=sys.stderr)
        if str(self.json) == "-":
            print(as_json(report, seconds=self.times), end="")
        if self.github:
            for line in workflow_commands(report):
                print(line)


def _show(report: Report) -> None:
    from rich.console import Console

    from kvpact.doctor.report.terminal import show

    show(report, Console(markup=False, highlight=False))
