"""Numbers, structures and signatures of HIP, hipRTC and hipBLASLt: the engine's against those of AMD's headers.

A program that is compiled with the headers prints them; nothing of AMD is linked or run.
"""

import functools
import subprocess
import tempfile
from pathlib import Path

import pytest
import rust_abi
from amd_names import FUNCTIONS, NUMBERS
from userland import RELEASES, folder

PROGRAM = """
#include <cstddef>
#include <cstdio>
#include <string>
#include <type_traits>
#define __HIP_DISABLE_CPP_FUNCTIONS__
#include <hip/hip_runtime_api.h>
#include <hip/hiprtc.h>
#include <hip/library_types.h>
#if WITH_HIPBLASLT
#include <hipblaslt/hipblaslt.h>
#endif

template <class T> std::string kind() {
    if (std::is_pointer<T>::value) return "pointer";
    if (std::is_integral<T>::value || std::is_enum<T>::value) return std::to_string(sizeof(T));
    return "another type";
}
template <class T> struct Signature;
template <class R, class... A> struct Signature<R(A...)> {
    static std::string text() {
        std::string all;
        for (const std::string& argument : {std::string("of"), kind<A>()...}) all += argument + " ";
        return all + "gives " + kind<R>();
    }
};
int main() {
    %s
}
"""


def is_of_hipblaslt(text: str) -> bool:
    return "hipblas" in text.lower()


def releases_with(text: str) -> list[str]:
    """Debian has no hipBLASLt for its ROCm 6."""
    return ["7"] if is_of_hipblaslt(text) else list(RELEASES)


@functools.cache
def headers(release: str) -> dict[str, str]:
    """All facts of a release's headers, in the words of the program; or what the compiler said, by no name."""
    lines = [
        f'printf("%s\\t%lld\\n", "{name}", (long long)({c}));'
        for name, (c, _) in NUMBERS.items()
        if release in releases_with(c)
    ]
    lines += [
        f'printf("%s\\t%s\\n", "{name}", Signature<decltype({name})>::text().c_str());'
        for name in FUNCTIONS
        if release in releases_with(name)
    ]
    options = ["-std=c++17", "-D__HIP_PLATFORM_AMD__", f"-DWITH_HIPBLASLT={int(release == '7')}"]
    options += ["-isystem", str(folder(release) / "usr/include")]
    with tempfile.TemporaryDirectory() as place:
        source, program = Path(place, "abi.cpp"), Path(place, "abi")
        source.write_text(PROGRAM % "\n    ".join(lines), encoding="utf-8")
        command = ["c++", *options, source, "-o", program]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return {"": done.stderr}
        shown = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return dict(line.split("\t") for line in shown.splitlines())


def fact(release: str, name: str) -> str:
    facts = headers(release)
    assert name in facts, f"the headers of ROCm {release} lack what the engine uses:\n{facts['']}"
    return facts[name]


@pytest.mark.parametrize(
    ("release", "name"), [(release, name) for name, (c, _) in NUMBERS.items() for release in releases_with(c)]
)
def test_a_number_is_that_of_amds_headers(release: str, name: str) -> None:
    c, ours = NUMBERS[name]
    theirs = fact(release, name)
    assert ours == theirs, f"{name}: the engine has {ours}, ROCm {release} has {c} = {theirs}"


@pytest.mark.parametrize(
    ("release", "name"), [(release, name) for name in FUNCTIONS for release in releases_with(name)]
)
def test_a_function_takes_what_the_engine_passes(release: str, name: str) -> None:
    ours = FUNCTIONS[name]
    words = fact(release, name).split()
    theirs, result = words[1:-2], words[-1]
    assert len(theirs) == len(ours.arguments), f"{ours}: ROCm {release} has {theirs}"
    for rust, kind in zip([*ours.arguments, ours.result], [*theirs, result], strict=True):
        assert kind in rust_abi.kinds(rust), f"{ours}: ROCm {release} passes {rust} as {kind}"
