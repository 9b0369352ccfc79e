"""`pytest --kvpact TARGET` adds one test for each of the doctor's rules. Loaded with every pytest run, so it imports late."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kvpact.doctor.checks import Check, Patient


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kvpact", "kvpact's doctor")
    group.addoption("--kvpact", metavar="TARGET", help="Examine an engine: one test for each rule. TARGET as kvpact doctor takes it.")
    group.addoption("--kvpact-select", metavar="RULES", default="", help="Only these rules: codes or names, joined by commas.")
    group.addoption("--kvpact-ignore", metavar="RULES", default="", help="All but these.")
    group.addoption("--kvpact-seed", metavar="N", type=int, default=0, help="Seed of every draw.")
    group.addoption("--kvpact-attention", metavar="NAME", help="For hf: eager, sdpa, ...")
    group.addoption("--kvpact-cache", metavar="NAME", help="For hf: dynamic, static, fp8, ..., or your own as module:factory.")
    group.addoption("--kvpact-dtype", metavar="NAME", help="float32, bfloat16 or float16; as stored by default.")
    group.addoption("--kvpact-device", metavar="NAME", help="For hf: cpu by default; cuda, cuda:1, ...")
    group.addoption("--kvpact-threads", metavar="N", type=int, help="For hf: or a callable: threads of torch, in the whole process.")
    group.addoption("--kvpact-expected", metavar="FILE", help="Rules known to fail; else [tool.kvpact.doctor] of pyproject.toml.")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The engine stands beside the files that the session collects, so that -k, -m and the counts treat its rules as other tests."""
    report = yield
    target = collector.config.getoption("kvpact")
    if target is not None and isinstance(collector, pytest.Session):
        name = f"kvpact[{target}]"
        report.result.append(KvpactTarget.from_parent(collector, name=name, nodeid=name, target=target))
    return report


class KvpactTarget(pytest.Collector):
    """One engine, with an item for each rule."""

    def __init__(self, *, target: str, **more: Any) -> None:
        super().__init__(**more)
        self._target = target

    def collect(self) -> Iterator[KvpactItem]:
        """The engine is made here, so that one that can't be is one error and not one for each rule; `--collect-only` makes none."""
        from kvpact.doctor.checks import checks, expected_to_fail
        from kvpact.doctor.resolve import Options
        from kvpact.errors import KvpactError

        loading = {name: self._option(name) for name in ("attention", "cache", "dtype", "device", "threads")}
        choice = {name: self._option(name) for name in ("select", "ignore", "seed")}
        try:
            expected = self._expected()
            made = checks(self._target, **choice, options=Options(**loading))
            self._patient: Patient = made[0].patient
            self.config.add_cleanup(self._patient.close)
            if not self.config.option.collectonly:
                self._patient.met()
        except KvpactError as error:
            raise self.CollectError(str(error)) from error
        for check in made:
            item: KvpactItem = KvpactItem.from_parent(self, name=str(check), check=check)
            if check.rule.code in expected:
                item.add_marker(expected_to_fail(expected[check.rule.code]))
            yield item

    def teardown(self) -> None:
        self._patient.close()

    def _expected(self) -> dict[str, str]:
        from kvpact.doctor.expectations import from_file, from_project

        file = self._option("expected")
        return from_project(self.config.rootpath) if file is None else from_file(Path(file))

    def _option(self, name: str) -> Any:
        return self.config.getoption(f"kvpact_{name}")


class KvpactItem(pytest.Item):
    """One rule on the engine."""

    def __init__(self, *, check: Check, **more: Any) -> None:
        super().__init__(**more)
        self._check = check

    def runtest(self) -> None:
        self._check()

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The finding's own words: where in the doctor it was raised helps nobody."""
        from kvpact.doctor.engine_check import ContractBroken
        from kvpact.errors import KvpactError

        known = isinstance(excinfo.value, (ContractBroken, KvpactError))
        return str(excinfo.value) if known else super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.nodeid
