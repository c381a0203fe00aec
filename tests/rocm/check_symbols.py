"""The functions that the engine looks up, in AMD's libraries as they load."""

import json

import pytest
import rust_abi
from amd_names import LIBRARIES
from rust_abi import Function
from userland import library, run

SEARCHED = rust_abi.BLASLT + (rust_abi.GPU / "driver" / "amd.rs").read_text(encoding="utf-8")
MISSING = """
import ctypes, json, sys
library = ctypes.CDLL(sys.argv[1])
print(json.dumps([name for name in sys.argv[2:] if not hasattr(library, name)]))
"""


@pytest.mark.parametrize(
    ("release", "name", "functions"),
    [
        ("7", "libamdhip64.so.7", LIBRARIES["HIP"]),
        ("7", "libhiprtc.so.7", LIBRARIES["hipRTC"]),
        ("7", "libhipblaslt.so.1", LIBRARIES["hipBLASLt"]),
        ("6", "libamdhip64.so.6", LIBRARIES["HIP"]),
        ("6", "libhiprtc.so.6", LIBRARIES["hipRTC"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_library_has_every_function(release: str, name: str, functions: list[Function]) -> None:
    assert f'"{name}"' in SEARCHED or name.startswith("libhiprtc.so."), f"the engine does not look for {name}"
    done = run(release, "-c", MISSING, library(release, name), *[function.name for function in functions])
    assert done.returncode == 0, f"{name} does not open: {done.stderr.decode()}"
    assert json.loads(done.stdout) == [], f"{name} lacks functions that the engine calls"
