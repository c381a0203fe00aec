"""The stand-in HIP runtime (`sim/hipsim`), by which a machine without an AMD GPU tests one."""

from pathlib import Path

import pytest
from rust_source import ROOT

STAND_IN = ROOT / "target" / "debug" / "libhipsim.so"
# The kernels of its CPU devices, compiled once for the Rust and the Python tests.
KERNELS = STAND_IN.parent / "test-kernels" / "kernels"
needs_stand_in = pytest.mark.skipif(
    not STAND_IN.exists(), reason="the stand-in HIP runtime is not built: cargo build -p hipsim"
)


def share_kernels(cache: Path) -> None:
    """Makes a cache folder of a test use the kernels that other tests have compiled."""
    KERNELS.mkdir(parents=True, exist_ok=True)
    (cache / "kernels").symlink_to(KERNELS)
