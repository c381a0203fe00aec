#!/usr/bin/env bash
# Builds all that a release consists of, into wheelhouse/: wheels for manylinux_2_28 on x86-64 and aarch64, and the
# source distribution: scripts/release/wheels.sh BIN, where BIN is the bin folder of an environment with maturin.
#
# zig, from the package index, links against glibc 2.28 whatever the system has and compiles C for either machine, so
# both wheels are built on one. maturin refuses a wheel that needs anything newer than its name promises.
set -euo pipefail
cd "$(dirname "$0")/../.."

bin=$(realpath "$1")
"$bin/python" -m pip --disable-pip-version-check --quiet install --requirement requirements-wheels.txt
rm -rf wheelhouse
# Wheels are built beside target/release: zig's objects for this machine are not those of its own compiler.
export CARGO_TARGET_DIR=target/wheels PATH="$bin:$PATH"
for machine in x86_64 aarch64; do
    target=$machine-unknown-linux-gnu
    rustup --quiet target add "$target"
    echo "==> wheel: $target"
    maturin build --quiet --release --locked --zig --compatibility manylinux_2_28 --target "$target" --out wheelhouse
done
echo '==> source distribution'
maturin sdist --out wheelhouse
"$bin/python" scripts/release/check_wheels.py wheelhouse
