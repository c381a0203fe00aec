#!/usr/bin/env python3
"""Checks what a release consists of, and lists it with its sizes: check_wheels.py FOLDER

A wheel for each machine, for any Python from 3.11 on, that needs no newer glibc than its name says; and a source
distribution with all that is built from it and nothing else. Exits with 1 where something is wrong.
"""

import re
import struct
import sys
import tarfile
import zipfile
from pathlib import Path

WHEEL = re.compile(r"rocmforge-[\w.]+-cp311-abi3-manylinux_2_28_(x86_64|aarch64)\.whl")
# `e_machine` of the ELF format.
MACHINES = {"x86_64": 62, "aarch64": 183}
GLIBC = (2, 28)
MODULE = "rocmforge/_rocmforge.abi3.so"
IN_WHEEL = {MODULE, "rocmforge/__init__.py", "rocmforge/_rocmforge.pyi", "rocmforge/py.typed"}
IN_SOURCE = {"Cargo.toml", "Cargo.lock", "pyproject.toml", "rust-toolchain.toml", "src/gpu/build.rs", "README.md"}
IN_SOURCE |= {"LICENSE", "THIRD_PARTY_LICENSES.txt"}
SOURCE_FOLDERS = {"src", "crates", "kernels", "benches", "python"}


def wheel_faults(path: Path) -> list[str]:
    """Lists the faults of a wheel."""
    named = WHEEL.fullmatch(path.name)
    if named is None:
        return [f"the name is not of the form {WHEEL.pattern}"]
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        faults = [f"without {name}" for name in sorted(IN_WHEEL - names)]
        faults += [f"with {name}" for name in sorted(names) if name.endswith((".pyc", ".so")) and name != MODULE]
        for licence in ("LICENSE", "THIRD_PARTY_LICENSES.txt"):
            if not any(name.endswith(f".dist-info/licenses/{licence}") for name in names):
                faults.append(f"without {licence}")
        metadata = [archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA")]
        if not any("\nRequires-Python: >=3.11\n" in text for text in metadata):
            faults.append("Requires-Python is not >=3.11")
        if MODULE in names:
            faults += library_faults(archive.read(MODULE), named[1])
    return faults


def library_faults(library: bytes, machine: str) -> list[str]:
    """Lists the faults of the extension module of a wheel for a machine."""
    faults = []
    (found,) = struct.unpack_from("<H", library, 18)
    if not library.startswith(b"\x7fELF") or found != MACHINES[machine]:
        faults.append(f"the module is of machine {found}, expected {MACHINES[machine]} ({machine})")
    versions = {(int(major), int(minor)) for major, minor in re.findall(rb"\0GLIBC_(\d+)\.(\d+)(?=[.\0])", library)}
    if not versions:
        faults.append("the module names no version of glibc")
    faults += [f"the module needs glibc {major}.{minor}" for major, minor in sorted(versions) if (major, minor) > GLIBC]
    return faults


def source_faults(path: Path) -> list[str]:
    """Lists the faults of a source distribution."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    faults = [f"without {name}" for name in sorted(IN_SOURCE - names)]
    folders = {name.partition("/")[0] for name in names if "/" in name}
    faults += [f"without {name}/" for name in sorted(SOURCE_FOLDERS - folders)]
    faults += [f"with {name}/" for name in sorted(folders - SOURCE_FOLDERS)]
    return faults + [f"with {name}" for name in sorted(names) if name.endswith((".pyc", ".so"))]


def main(folder: Path) -> int:
    wheels, sources = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    faults = [f"{path.name}: {fault}" for path in wheels for fault in wheel_faults(path)]
    faults += [f"{path.name}: {fault}" for path in sources for fault in source_faults(path)]
    machines = sorted(named[1] for path in wheels if (named := WHEEL.fullmatch(path.name)))
    if machines != sorted(MACHINES):
        faults.append(f"wheels for {machines}, expected one for each of {sorted(MACHINES)}")
    if len(sources) != 1:
        faults.append(f"{len(sources)} source distributions, expected one")
    for path in [*wheels, *sources]:
        print(f"{path.stat().st_size / 1e6:8.1f} MB  {path.name}")
    for fault in faults:
        print(fault, file=sys.stderr)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
