"""Tests of how a release is made: parts are checked before they are published, and the workflow runs what is there."""

import re
import shutil
import struct
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from rust_source import ROOT

sys.path.insert(0, str(ROOT / "scripts" / "release"))
import check_wheels
import package_page

MACHINES = {"x86_64": 62, "aarch64": 183}


def library(machine: int, *versions: str) -> bytes:
    """The part of an ELF file that tells its machine, and the versions of glibc as its string table has them."""
    names = b"".join(b"\0" + version.encode() for version in versions)
    return b"\x7fELF" + bytes(14) + struct.pack("<H", machine) + names + b"\0"


def write_wheel(folder: Path, machine: str, **changed: bytes | None) -> None:
    files: dict[str, bytes | None] = {
        "rocmforge/__init__.py": b"",
        "rocmforge/_rocmforge.pyi": b"",
        "rocmforge/py.typed": b"",
        "rocmforge/_rocmforge.abi3.so": library(MACHINES[machine], "GLIBC_2.17", "GLIBC_2.28"),
        "rocmforge-1.0.dist-info/licenses/LICENSE": b"Apache",
        "rocmforge-1.0.dist-info/licenses/THIRD_PARTY_LICENSES.txt": b"MIT",
        "rocmforge-1.0.dist-info/METADATA": b"Name: rocmforge\nRequires-Python: >=3.11\n\n",
    }
    files |= {name: data for key, data in changed.items() for name in files if key in name}
    with zipfile.ZipFile(folder / f"rocmforge-1.0-cp311-abi3-manylinux_2_28_{machine}.whl", "w") as archive:
        for name, data in files.items():
            if data is not None:
                archive.writestr(name, data)


def write_source(folder: Path, *, without: str = "", beside: str = "") -> None:
    names = ["Cargo.toml", "Cargo.lock", "pyproject.toml", "rust-toolchain.toml", "LICENSE", "README.md"]
    names += ["THIRD_PARTY_LICENSES.txt", "src/gpu/build.rs"]
    names += ["src/lib.rs", "crates/a/src/lib.rs", "kernels/a.hip", "src/gpu/build/clang.rs", "benches/a.rs"]
    names += ["python/rocmforge/__init__.py"]
    with tarfile.open(folder / "rocmforge-1.0.tar.gz", "w:gz") as archive:
        for name in [*names, beside]:
            if name not in {"", without}:
                archive.addfile(tarfile.TarInfo(f"rocmforge-1.0/{name}"))


def test_a_complete_release_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for machine in MACHINES:
        write_wheel(tmp_path, machine)
    write_source(tmp_path)
    assert check_wheels.main(tmp_path) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert len(shown.out.splitlines()) == 3


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"pyi": None}, "without rocmforge/_rocmforge.pyi"),
        ({"/LICENSE": None}, "without LICENSE"),
        ({"THIRD_PARTY": None}, "without THIRD_PARTY_LICENSES.txt"),
        ({"METADATA": b"Requires-Python: >=3.8\n"}, "Requires-Python is not >=3.11"),
        ({"abi3": library(62, "GLIBC_2.17")}, "the module is of machine 62, expected 183"),
        ({"abi3": library(183, "GLIBC_2.17", "GLIBC_2.34")}, "the module needs glibc 2.34"),
        ({"abi3": library(183)}, "names no version of glibc"),
    ],
)
def test_a_wrong_wheel_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, bytes | None], fault: str
) -> None:
    write_wheel(tmp_path, "x86_64")
    write_wheel(tmp_path, "aarch64", **changed)
    write_source(tmp_path)
    assert check_wheels.main(tmp_path) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("rocmforge-1.0-cp311-abi3-manylinux_2_28_aarch64.whl: ")
    assert fault in line


def test_a_wheel_for_other_systems_or_one_machine_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_wheel(tmp_path, "x86_64")
    write_wheel(tmp_path, "aarch64")
    (made,) = tmp_path.glob("*aarch64.whl")
    made.rename(made.with_name("rocmforge-1.0-cp311-abi3-linux_aarch64.whl"))
    write_source(tmp_path)
    assert check_wheels.main(tmp_path) == 1
    shown = capsys.readouterr().err
    assert "the name is not of the form" in shown
    assert "wheels for ['x86_64'], expected one for each of ['aarch64', 'x86_64']" in shown


@pytest.mark.parametrize(
    ("without", "beside", "fault"),
    [
        ("Cargo.lock", "", "without Cargo.lock"),
        ("kernels/a.hip", "", "without kernels/"),
        ("", "tests/data/large.xz", "with tests/"),
        ("", "python/rocmforge/_rocmforge.abi3.so", "with python/rocmforge/_rocmforge.abi3.so"),
    ],
)
def test_a_wrong_source_distribution_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], without: str, beside: str, fault: str
) -> None:
    for machine in MACHINES:
        write_wheel(tmp_path, machine)
    write_source(tmp_path, without=without, beside=beside)
    assert check_wheels.main(tmp_path) == 1
    assert capsys.readouterr().err == f"rocmforge-1.0.tar.gz: {fault}\n"


def test_a_command_that_fails_ahead_of_a_pipe_fails_its_job() -> None:
    """GitHub runs a step with `bash -e`, and with `-o pipefail` only where a workflow names bash."""
    jobs = {
        name: job
        for file in sorted((ROOT / ".github" / "workflows").glob("*.yml"))
        for name, job in yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"].items()
    }
    piped = [
        (name, step.get("shell", job.get("defaults", {}).get("run", {}).get("shell")))
        for name, job in jobs.items()
        for step in job["steps"]
        if re.search(r"[^|]\|[^|]", step.get("run", ""))
    ]
    assert piped == [("try-wheel", "bash")]


def test_actions_are_pinned_by_commit() -> None:
    """A tag of an action can be moved to other code; a commit cannot. A comment has the version."""
    used = [
        line.strip().removeprefix("- ")
        for file in sorted((ROOT / ".github" / "workflows").glob("*.yml"))
        for line in file.read_text(encoding="utf-8").splitlines()
        if "uses:" in line
    ]
    assert used
    assert [
        line for line in used if not re.fullmatch(r"uses: [\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)
    ] == []


def test_the_workflow_runs_what_is_there_and_keeps_no_secret() -> None:
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"\bmake ([a-z-]+)", workflow)
    assert set(targets) == {"gpu-tools", "wheels"}
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []
    assert "secrets." not in workflow
    assert re.search(r"^      id-token: write\b", workflow, re.MULTILINE)


def test_the_page_on_the_package_index_has_no_relative_link(tmp_path: Path) -> None:
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    url = "https://github.com/owner/name"
    package_page.main(url, "v1", tmp_path)
    readme = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert [target for target in re.findall(r"\]\(([^)]+)\)", readme) if not target.startswith("https://")] == []
    assert f"]({url}/raw/v1/docs/throughput.svg)" in readme
    assert f"]({url}/blob/v1/docs/performance.md)" in readme
    assert package_page.absolute("[a](https://x.org) [b](#c)", url, "v1") == "[a](https://x.org) [b](#c)"
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["urls"]["Homepage"] == url
    with pytest.raises(SystemExit, match="already"):
        package_page.main(url, "v1", tmp_path)


def test_the_project_says_for_whom_it_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["authors"]
    assert "Development Status :: 3 - Alpha" in project["classifiers"]
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    (tried,) = re.findall(r"python: \[(.*)\]", workflow)
    versions = {name.removeprefix("Programming Language :: Python :: ") for name in project["classifiers"]}
    assert set(re.findall(r'"([\d.]+)"', tried)) <= versions
