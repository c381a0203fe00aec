#!/usr/bin/env python3
"""Registers, spills and shared memory of the kernels that were compiled for AMD GPUs, from the code objects' own notes.

    scripts/kernels/kernel_report.py [--all] [--write] [target/kernels/release.tsv]

The list of code objects is written by the build (release builds have all targets). Fails if a kernel of the inner loop
spills registers, if any kernel wants more shared memory (LDS) than a block may have, if launches are planned for more
blocks than fit a multiprocessor, if decoding exchanges lanes through LDS by addresses, or if what bounds a hot kernel
by the model of kernel_model.py is worse by more than 10 % than docs/kernels.md says; --write writes the bounds into it.
Prints one line per kernel and target with --all, else the worst over all targets of each kernel. "Waves" is how many
waves of a SIMD the vector registers allow.
"""

import argparse
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import kernel_model
import kernel_table

ROOT = Path(__file__).resolve().parents[2]
LISTS = (ROOT / "target/kernels/release.tsv", ROOT / "target/kernels/debug.tsv")
HOT = ("gemv_", "matmul_", "attention_")
# The widest matrix kernel on the generic target of GFX9, which has no matrix units: only for devices without code of
# their own, where it is slow anyhow.
KNOWN_SPILLS = re.compile(r"matmul_\w+_n64 gfx9-generic")
MAX_LDS = 64 * 1024
# First version that knows every target, as in src/gpu/build/clang.rs.
READELF = ("llvm-readelf-22", "llvm-readelf-23", "llvm-readelf-24", "llvm-readelf")

# Vector registers of a SIMD (per lane, wave32 where the family has it), allocation unit, waves at most (LLVM's
# AMDGPUBaseInfo). The first pattern that matches a target counts.
REGISTER_FILES = (
    (r"gfx90a|gfx94|gfx950", 512, 8, 8),
    (r"gfx9", 256, 4, 10),
    (r"gfx10", 1024, 16, 16),
    (r"gfx1100|gfx1101|gfx1151|gfx12", 1536, 24, 16),
    (r"gfx11", 1024, 16, 16),
)


@dataclass(frozen=True)
class Kernel:
    """One kernel of one code object."""

    name: str
    target: str
    threads: int
    vgprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    lds: int
    scratch: int

    @property
    def waves(self) -> int:
        """Waves of a SIMD that the vector registers allow."""
        for pattern, registers, unit, most in REGISTER_FILES:
            if re.match(pattern, self.target):
                return min(most, registers // (-(-max(self.vgprs, 1) // unit) * unit))
        raise SystemExit(f"no register file is known for {self.target}")

    def faults(self) -> list[str]:
        """Lists the faults with which a build must not ship the kernel."""
        found = []
        # Scalar registers are kept in lanes of a vector register, which costs no memory, unless there is scratch too.
        spilled = self.vgpr_spills or (self.sgpr_spills and self.scratch)
        if spilled and self.name.startswith(HOT) and not KNOWN_SPILLS.match(f"{self.name} {self.target}"):
            spills = f"{self.vgpr_spills} vector and {self.sgpr_spills} scalar registers"
            found.append(f"{self.name} for {self.target} spills {spills}")
        if self.lds > MAX_LDS:
            found.append(f"{self.name} for {self.target} wants {self.lds} bytes of LDS, {MAX_LDS} are there")
        return found


def parse_notes(text: str, target: str) -> list[Kernel]:
    """The kernels in the output of `llvm-readelf --notes`."""

    def number(entry: str, key: str) -> int:
        match = re.search(rf"^ *\.{key}: +(\d+)$", entry, re.MULTILINE)
        return int(match.group(1)) if match else 0

    kernels = []
    # Each kernel is an entry of a YAML list that begins in column 2.
    for entry in re.split(r"^  - (?=\.)", text, flags=re.MULTILINE)[1:]:
        name = re.search(r"^    \.name: +(\S+)$", entry, re.MULTILINE)
        if name:
            kernels.append(
                Kernel(
                    name=name.group(1),
                    target=target,
                    threads=number(entry, "max_flat_workgroup_size"),
                    vgprs=number(entry, "vgpr_count"),
                    sgprs=number(entry, "sgpr_count"),
                    vgpr_spills=number(entry, "vgpr_spill_count"),
                    sgpr_spills=number(entry, "sgpr_spill_count"),
                    lds=number(entry, "group_segment_fixed_size"),
                    scratch=number(entry, "private_segment_fixed_size"),
                )
            )
    return kernels


def read_listing(listing: Path) -> dict[tuple[str, str], str]:
    """The paths of a build's code objects, by target and unit."""
    lines = [line.split("\t") for line in listing.read_text(encoding="utf-8").splitlines()]
    return {(target, unit): path for target, unit, path in lines}


def read_kernels(paths: dict[tuple[str, str], str]) -> list[Kernel]:
    """The kernels of every code object of a build."""
    readelf = next(filter(None, map(shutil.which, READELF)), None)
    if readelf is None:
        raise SystemExit(f"none of {', '.join(READELF)} is in the path; on Debian: apt install llvm-22")
    objects = defaultdict(list)
    for (target, _), path in paths.items():
        objects[target].append(path)
    kernels = []
    for target, files in objects.items():
        notes = subprocess.run([readelf, "--notes", *files], check=True, capture_output=True, text=True).stdout
        kernels += parse_notes(notes, target)
    return kernels


def table(rows: list[Kernel]) -> str:
    """One line per kernel; spills are those of vector and of scalar registers."""
    head = ("kernel", "target", "thr", "vgpr", "sgpr", "spills", "scratch", "lds", "waves")
    cells = [head] + [
        (k.name, k.target, k.threads, k.vgprs, k.sgprs, f"{k.vgpr_spills}+{k.sgpr_spills}", k.scratch, k.lds, k.waves)
        for k in rows
    ]
    return "\n".join("{:34} {:16} {:>4} {:>4} {:>4} {:>7} {:>7} {:>6} {:>5}".format(*row) for row in cells)


def worst(kernels: list[Kernel]) -> list[Kernel]:
    """Picks for each kernel the target on which it is worst: spills first, then the fewest waves."""

    def badness(k: Kernel) -> tuple[int, int, int, int]:
        return k.vgpr_spills, k.sgpr_spills, -k.waves, k.lds

    by_name: dict[str, Kernel] = {}
    for kernel in kernels:
        known = by_name.setdefault(kernel.name, kernel)
        if badness(kernel) > badness(known):
            by_name[kernel.name] = kernel
    return [by_name[name] for name in sorted(by_name)]


def check_bounds(bounds: list[kernel_model.Bound], arguments: argparse.Namespace) -> list[str]:
    """Prints what bounds the hot kernels, writes it where that is asked for, and lists what became worse."""
    there = {bound.device for bound in bounds}
    for bound in bounds if arguments.all else []:
        print(bound.line())
    if missing := [device for device in kernel_model.DEVICES if device.name not in there]:
        print("bounds: not compiled, so skipped: " + ", ".join(f"{d.name} ({d.target})" for d in missing))
    if arguments.write:
        kernel_table.write(bounds)
    faults, remarks = kernel_table.compare(bounds, kernel_table.DOCUMENT.read_text(encoding="utf-8"))
    print(f"bounds: {len(bounds)} of hot kernels on {len(there)} GPUs, {len(faults)} worse than docs/kernels.md says")
    print("\n".join(remarks), end="\n" if remarks else "")
    return [fault for bound in bounds for fault in bound.faults()] + faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("listing", nargs="?", type=Path, help="list of code objects")
    parser.add_argument("--all", action="store_true", help="every target instead of the worst, and every bound")
    parser.add_argument("--write", action="store_true", help="write the bounds into docs/kernels.md")
    arguments = parser.parse_args()
    listing = arguments.listing or next((path for path in LISTS if path.exists()), None)
    if listing is None:
        raise SystemExit(
            f"{LISTS[0]} is not there: build with a compiler for AMD GPUs first (src/gpu/build.rs says which)"
        )
    paths = read_listing(listing)
    kernels = read_kernels(paths)
    targets = {kernel.target for kernel in kernels}
    print(table(sorted(kernels, key=lambda k: (k.name, k.target)) if arguments.all else worst(kernels)))
    print(f"{len(kernels)} kernels for {len(targets)} targets: {', '.join(sorted(targets))}")
    faults = [fault for kernel in kernels for fault in kernel.faults()]
    if not kernels:
        faults.append(f"{listing} lists no kernels")
    faults += check_bounds(kernel_model.bounds(paths, kernels), arguments)
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
