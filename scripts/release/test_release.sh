#!/usr/bin/env bash
# Installs what scripts/release/wheels.sh built, each time into an environment of its own, and runs a model with it:
# the wheel for this machine, and a wheel that pip builds from the source distribution:
# scripts/release/test_release.sh PYTHON
set -euo pipefail
cd "$(dirname "$0")/../.."

python=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Outside of the checkout, so that nothing of it can be imported.
run_it() {
    local wheel
    wheel=$(realpath "$1")
    "$python" -m venv "$work/$2"
    "$work/$2/bin/python" -m pip --disable-pip-version-check --quiet install "${wheel}[cli]"
    "$python" -c 'import lzma, sys; sys.stdout.buffer.write(lzma.open(sys.argv[1]).read())' \
        tests/data/quant_models/Q4_K_M.gguf.xz >"$work/model.gguf"
    (cd "$work" && "$work/$2/bin/rocmforge" generate "a" --model model.gguf --temperature 0 -n 8 --json) |
        "$python" -c 'import json, sys; print("==> it generates:", json.load(sys.stdin))'
}

echo '==> the wheel for this machine'
run_it "$(ls wheelhouse/*_"$(uname -m)".whl)" wheel
echo '==> a wheel from the source distribution (a release build)'
# Kernels for AMD GPUs are in the wheel above; here they would only take time.
ROCMFORGE_HIP_TARGETS=none CARGO_TARGET_DIR=$PWD/target/sdist "$python" -m pip --disable-pip-version-check --quiet wheel \
    --no-deps --wheel-dir "$work/built" wheelhouse/*.tar.gz
run_it "$(ls "$work"/built/*.whl)" source
