"""The stand-in HIP runtime (`sim/hipsim`), by which a machine without an AMD GPU tests one."""

import pytest
from rust_source import ROOT

STAND_IN = ROOT / "target" / "debug" / "libhipsim.so"
needs_stand_in = pytest.mark.skipif(
    not STAND_IN.exists(), reason="the stand-in HIP runtime is not built: cargo build -p hipsim"
)
