"""The doctor inside somebody else's test suite, run as they run it."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

#: An installed kvpact brings the plug-in itself; from its sources it is named.
PLUGIN = () if any(each.name == "kvpact" for each in entry_points(group="pytest11")) else ("-p", "kvpact.doctor.pytest_plugin")
ARGUMENTS = (*PLUGIN, "-p", "no:cacheprovider", "--kvpact-select", "KV101")


@pytest.fixture(autouse=True)
def _adapter(third_party: Path) -> None:
    """The scheme `scripted:` is there."""


def test_an_engine_gets_a_test_for_each_rule(pytester: pytest.Pytester) -> None:
    ran = pytester.runpytest(*ARGUMENTS, "--kvpact", "scripted:well", "-v")
    ran.assert_outcomes(passed=2)
    ran.stdout.fnmatch_lines(["*collected 2 items", "kvpact?scripted:well?::KV101-cached-differs-from-recomputed PASSED*"])
    assert ran.ret == 0


def test_a_finding_fails_in_its_own_words(pytester: pytest.Pytester) -> None:
    ran = pytester.runpytest(*ARGUMENTS, "--kvpact", "scripted:forgets")
    ran.assert_outcomes(passed=1, failed=1)
    ran.stdout.fnmatch_lines(["KV101 cached-differs-from-recomputed", "  cure *"])
    assert "Traceback" not in ran.stdout.str()
    assert "checks.py" not in ran.stdout.str()


def test_an_engine_that_breaks_off_fails_and_says_how(pytester: pytest.Pytester) -> None:
    ran = pytester.runpytest(*ARGUMENTS, "--kvpact", "scripted:breaks")
    ran.assert_outcomes(failed=2)
    ran.stdout.fnmatch_lines(["*the adapter divides by zero*"])


def test_rules_are_chosen_as_other_tests_are(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_mine(): pass")
    ran = pytester.runpytest(*ARGUMENTS, "--kvpact", "scripted:forgets", "-k", "KV101 or mine")
    ran.assert_outcomes(passed=1, failed=1, deselected=1)


def test_a_rule_without_access_is_skipped_with_its_reason(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from kvpact.doctor.checks import Check, Patient
        from kvpact.doctor.finding import inconclusive
        from kvpact.doctor.rule import Page, Rule, Way
        from kvpact.doctor.target import Capability
        from scripted import Scripted

        PAGE = Page(symptoms=("s",), checks="c", matters="m", lookalikes="l", causes=())

        def run(*needs, verdict=None):
            way = Way(name="way", needs=frozenset(needs), check=lambda exam: verdict)
            Check(rule=Rule(code="KV306", page=PAGE, ways=(way,)), patient=Patient(Scripted))()

        def test_skipped():
            run(Capability.TABLES)

        def test_inconclusive():
            run(verdict=inconclusive("no power"))
        """
    )
    ran = pytester.runpytest(*PLUGIN, "-rs")
    ran.assert_outcomes(skipped=2)
    ran.stdout.fnmatch_lines(["SKIPPED*skipped: way needs tables", "SKIPPED*inconclusive: no power"])


def test_known_failures_of_the_project_are_xfailed(pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml('[tool.kvpact.doctor]\nexpected = {KV101 = "issue 12"}\n[tool.pytest.ini_options]\n')
    pytester.runpytest(*ARGUMENTS, "--kvpact", "scripted:forgets").assert_outcomes(passed=1, xfailed=1)
    pytester.runpytest(*ARGUMENTS, "--kvpact", "scripted:well").assert_outcomes(passed=1, xpassed=1)


def test_an_expectation_does_not_excuse_an_engine_that_breaks_off(pytester: pytest.Pytester) -> None:
    file = pytester.makefile(".toml", known='KV101 = "issue 12"')
    ran = pytester.runpytest(*ARGUMENTS, "--kvpact", "scripted:breaks", "--kvpact-expected", str(file))
    ran.assert_outcomes(failed=2)


@pytest.mark.parametrize(("option", "value"), [("--kvpact-select", "KV999"), ("--kvpact-expected", "none.toml")])
def test_a_mistake_ends_the_collection_with_a_hint(pytester: pytest.Pytester, option: str, value: str) -> None:
    ran = pytester.runpytest(*PLUGIN, "--kvpact", "scripted:well", option, value)
    assert ran.ret == pytest.ExitCode.INTERRUPTED
    ran.stdout.fnmatch_lines(["*hint: *"])


def test_an_engine_that_can_t_be_made_is_one_error_and_not_one_for_each_rule(pytester: pytest.Pytester) -> None:
    ran = pytester.runpytest(*PLUGIN, "--kvpact", "nosuch:thing")
    ran.assert_outcomes(errors=1)
    assert ran.ret == pytest.ExitCode.INTERRUPTED
    ran.stdout.fnmatch_lines(["*no module nosuch*"])
    assert ran.stdout.str().count("hint: ") == 1


def test_to_collect_tests_only_makes_no_engine(pytester: pytest.Pytester) -> None:
    ran = pytester.runpytest(*ARGUMENTS, "--kvpact", "nosuch:thing", "--collect-only", "-q")
    assert ran.ret == 0
    ran.stdout.fnmatch_lines(["kvpact?nosuch:thing?::KV101-cached-differs-from-recomputed"])


@pytest.mark.parametrize("option", ["attention", "cache", "dtype", "threads"])
def test_an_engine_is_loaded_as_it_is_told(pytester: pytest.Pytester, third_party: Path, option: str) -> None:
    value = "3" if option == "threads" else "odd"
    adapter = third_party / "scripted_adapter.py"
    wanted = f"    assert str(options.{option}) == {value!r}, options\n"
    adapter.write_text(adapter.read_text().replace("    return", wanted + "    return"))
    pytester.runpytest(*ARGUMENTS, "--kvpact", "scripted:well", f"--kvpact-{option}", value).assert_outcomes(passed=2)


def test_an_engine_whose_tests_were_all_deselected_is_let_go(
    pytester: pytest.Pytester, third_party: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "scripted_adapter", raising=False)  # another test may have imported its own
    adapter = third_party / "scripted_adapter.py"
    adapter.write_text(
        "from scripted import Scripted\n\n\nclass Told(Scripted):\n    def close(self):\n        print('let go')\n\n\n"
        "def open_target(rest, options):\n    return Told()\n"
    )
    pytester.makepyfile("def test_mine(): pass")
    ran = pytester.runpytest(*ARGUMENTS, "--kvpact", "scripted:well", "-k", "mine", "-s")
    ran.assert_outcomes(passed=1, deselected=2)
    assert ran.stdout.str().count("let go") == 1


def test_without_its_option_the_plug_in_adds_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_mine(): pass")
    pytester.runpytest(*PLUGIN).assert_outcomes(passed=1)


def test_a_suite_of_one_s_own_gets_a_test_for_each_rule(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from kvpact.doctor import parametrize_with_checks
        from scripted import Scripted

        made = []

        def make():
            made.append(Scripted(forgets=True))
            return made[-1]

        @parametrize_with_checks(make, select=["KV101"])
        def test_contract(check):
            check()

        @parametrize_with_checks(make, select=["KV101"], expected={"KV101": "issue 12"})
        def test_known(check):
            check()

        def test_one_engine_for_all_rules_of_a_test():
            assert len(made) == 2
        """
    )
    ran = pytester.runpytest(*PLUGIN, "-v")
    ran.assert_outcomes(passed=3, failed=1, xfailed=1)
    ran.stdout.fnmatch_lines(["*test_contract?KV101-cached-differs-from-recomputed? FAILED*"])
