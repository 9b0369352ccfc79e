"""The compiled core's own tests are plain C++ programs, one build for each instruction set; here they run without sanitizers."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src" / "kvpact" / "native" / "tests"


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the programs were built in, once."""
    if shutil.which("make") is None or shutil.which(os.environ.get("CXX", "c++")) is None:
        pytest.skip("needs make and a C++ compiler")
    out = tmp_path_factory.mktemp("native")
    built = subprocess.run(["make", "-j2", f"--directory={SOURCES}", f"OUT={out}", "build"], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return out


@pytest.mark.xdist_group("native programs")
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
