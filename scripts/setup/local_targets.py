#!/usr/bin/env python3
"""Prints the targets that serve this machine's AMD GPUs, for ROCMFORGE_HIP_TARGETS: "none" where there is no such GPU,
an empty line where a full build is needed.

Usage: local_targets.py [TOPOLOGY WSL]
  TOPOLOGY  by default /sys/class/kfd/kfd/topology/nodes, where AMD's driver says what there is
  WSL       by default /dev/dxg: where it is there, a GPU may be there that TOPOLOGY does not have
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")
WSL = Path("/dev/dxg")


def target(version: int) -> str:
    """110003 is gfx1103, 90010 is gfx90a: the last two digits in base 16."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def local_targets(topology: Path) -> list[str]:
    """Targets of the GPUs that the kernel lists; CPUs, whose version is 0, are left out."""
    found = set()
    for properties in topology.glob("*/properties"):
        version = re.search(r"^gfx_target_version (\d+)$", properties.read_text(), re.MULTILINE)
        if version is not None and int(version[1]):
            found.add(target(int(version[1])))
    return sorted(found)


def built_targets() -> dict[str, str]:
    """By GPU, the target that serves it: its own where it has one, else its family's."""
    plan = (ROOT / "src/gpu/compile/plan.rs").read_text()
    families = re.findall(r'\(\s*"(gfx[\w-]+)",\s*&\[([^]]*)\]', plan)
    served = {gpu: family for family, gpus in families for gpu in re.findall(r'"(\w+)"', gpus)}
    exact = re.search(r"const EXACT_TARGETS:.*?\];", plan, re.DOTALL)
    return served | {gpu: gpu for gpu in re.findall(r'"(gfx\w+)"', exact[0] if exact else "")}


def main() -> None:
    topology, wsl = map(Path, sys.argv[1:3]) if len(sys.argv) > 2 else (TOPOLOGY, WSL)
    gpus, served = local_targets(topology), built_targets()
    if not gpus:
        print("" if wsl.exists() else "none")
    else:
        # A full build is needed where a GPU is in neither list.
        print(",".join(sorted({served[gpu] for gpu in gpus})) if set(gpus) <= set(served) else "")


if __name__ == "__main__":
    main()
