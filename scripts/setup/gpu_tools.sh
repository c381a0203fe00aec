#!/usr/bin/env bash
# Finds the tools that compile and execute AMD kernels without an AMD GPU: clang (AMDGPU back end), lld and
# llvm-objdump, version 22 or newer. Installs them from apt when root; otherwise says what is missing. Exits 0 when they
# are there.
#
# The tools found are written to target/kernels/compilers. When that changes, cargo builds anew: what was built without
# a compiler carries no code for AMD GPUs, and cargo sees no difference. With --found it does this alone, and prints it.
set -euo pipefail
cd "$(dirname "$0")/../.."

version=22

# The programs that src/gpu/build/clang.rs looks for, and the linkers that they call; `clang` may be of any version.
found() {
    local tool
    echo "ROCMFORGE_HIP_CLANG=${ROCMFORGE_HIP_CLANG:-}"
    for tool in clang-{22..31} lld-{22..31} clang lld ld.lld; do
        command -v "$tool" || true
    done
    if command -v clang >/dev/null; then clang --version; fi
}

record() {
    local file=target/kernels/compilers now
    now=$(found)
    if [ "$(cat "$file" 2>/dev/null)" != "$now" ]; then
        mkdir -p "$(dirname "$file")"
        printf '%s\n' "$now" >"$file"
        touch src/gpu/build.rs
    fi
}

if [ "${1:-}" = --found ]; then
    record
    found
    exit 0
fi
missing=()
for tool in clang lld llvm-objdump llvm-readelf; do
    command -v "$tool-$version" >/dev/null || missing+=("$tool-$version")
done
if [ ${#missing[@]} -eq 0 ]; then
    record
    exit 0
fi
echo "AMD kernels need ${missing[*]}"
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "installing clang-$version lld-$version llvm-$version from apt (75 MB)"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        "clang-$version" "lld-$version" "llvm-$version" >/dev/null
    record
    exit 0
fi
record
echo "SKIPPED: AMD kernels are neither compiled nor executed; install clang-$version lld-$version llvm-$version" >&2
# CI fails if anything is missing.
[ "${CI:-}" != true ]
