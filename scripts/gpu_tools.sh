#!/usr/bin/env bash
# What compiles and executes AMD kernels without an AMD GPU: clang (AMDGPU back end), lld and llvm-objdump, version 22
# or newer. Installs them from apt when root; otherwise says what is missing. Exits 0 when they are there.
set -euo pipefail

version=22
missing=()
for tool in clang lld llvm-objdump llvm-readelf; do
    command -v "$tool-$version" >/dev/null || missing+=("$tool-$version")
done
if [ ${#missing[@]} -eq 0 ]; then
    exit 0
fi
echo "AMD kernels need ${missing[*]}"
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "installing clang-$version lld-$version llvm-$version from apt (75 MB)"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        "clang-$version" "lld-$version" "llvm-$version" >/dev/null
    # What was built without them is built again.
    touch "$(dirname "$0")/../build.rs"
    exit 0
fi
echo "SKIPPED: AMD kernels are neither compiled nor executed; install clang-$version lld-$version llvm-$version" >&2
# In CI nothing may be missing.
[ "${CI:-}" != true ]
