"""The compiled core's own tests are plain C++ programs, one build for each instruction set; here they run without sanitizers."""

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from filelock import FileLock

SOURCES = Path(__file__).parents[2] / "src" / "kvpact" / "native" / "tests"


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the programs were built in, once for all workers."""
    if shutil.which("make") is None or shutil.which(os.environ.get("CXX", "c++")) is None:
        pytest.skip("needs make and a C++ compiler")
    shared = tmp_path_factory.getbasetemp() if "PYTEST_XDIST_WORKER" not in os.environ else tmp_path_factory.getbasetemp().parent
    out = shared / "native-programs"
    with FileLock(shared / "native-programs.lock"):  # workers share one build: the second finds it done
        built = subprocess.run(["make", "-j2", f"--directory={SOURCES}", f"OUT={out}", "build"], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return out


def test_every_program_of_the_core_passes_in_every_build(programs):
    found = sorted(path for path in programs.rglob("test_*") if path.suffix == "")
    assert {path.name for path in found} == {path.stem for path in SOURCES.glob("test_*.cpp")}
    for program in found:
        result = subprocess.run([program], capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, f"{program.relative_to(programs)}: {result.stderr}"


def test_a_program_that_finds_a_fault_fails(programs, tmp_path):
    source = tmp_path / "fault.cpp"
    source.write_text(f'#include "{SOURCES / "check.hpp"}"\nint main() {{ CHECK(1 == 2, "%d is not %d", 1, 2); }}\n')
    subprocess.run([os.environ.get("CXX", "c++"), source, "-o", tmp_path / "fault"], check=True)
    result = subprocess.run([tmp_path / "fault"], capture_output=True, text=True)
    assert result.returncode == 1
    assert "1 is not 2" in result.stderr


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the instruction sets are those of x86-64")
def test_only_the_builds_for_wide_vectors_hold_wide_instructions(programs):
    """Or the module would end on a machine without them before it could choose."""
    wide = re.compile(r"%ymm|\bv\w+\s.*%xmm")
    for folder, expected in (("baseline", False), (".", False), ("avx2", True), ("avx512", True)):
        for name in ("linear.o", "attention.o") if expected else [path.name for path in (programs / folder).glob("*.o")]:
            code = subprocess.run(["objdump", "-d", programs / folder / name], capture_output=True, text=True, check=True).stdout
            assert "Disassembly of section" in code
            assert bool(wide.search(code)) == expected, f"{folder}/{name}"


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm")
@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_no_function_of_one_build_can_replace_one_of_another(programs, isa):
    """The linker keeps one of several equal weak functions, whichever build it came from."""
    for file in (programs / isa).glob("*.o"):
        if file.name.startswith("test_"):
            continue
        symbols = subprocess.run(["nm", "-C", file], capture_output=True, text=True, check=True).stdout.splitlines()
        weak = [line for line in symbols if re.match(r"[0-9a-f]+ [WVu] ", line) and f"kvpact::{isa}::" not in line]
        assert weak == [], file.name
