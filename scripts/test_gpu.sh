#!/usr/bin/env bash
# The tests on the GPU of this machine: conformance of every kernel (Rust), the Python suite in batch-invariant mode, the
# golden models in the default mode, and a short run under the vendor's memory checker where there is one.
# Usage: test_gpu.sh PYTHON [CONFORMANCE]; CONFORMANCE is a compiled Rust test binary, for machines without Rust.
set -uo pipefail

python=$1
conformance=${2:-}
here=$(cd "$(dirname "$0")/.." && pwd)
export ROCMFORGE_DEVICE=hip
failed=()

if ! "$python" -m rocmforge doctor | tee /dev/stderr | grep '^device hip:' | grep -qv 'not usable'; then
    echo 'SKIPPED: no GPU that this build can use (see above)'
    exit 0
fi

run() {
    local name=$1
    shift
    printf '==> %s\n' "$name"
    "$@" || failed+=("$name")
}

if [ -n "$conformance" ]; then
    run 'conformance' "$conformance" --test-threads=1 backend::hip
elif command -v cargo >/dev/null; then
    run 'conformance' cargo test --quiet --locked --lib backend::hip
else
    echo 'SKIPPED: conformance (no cargo, no compiled test binary given)'
fi
# Sources and documents are the same everywhere: make test checks them.
cpu_only=(--ignore "$here/tests/test_architecture.py" --ignore "$here/tests/test_docs.py"
    --ignore "$here/tests/test_failure_classes.py" --ignore "$here/tests/test_scripts.py")
run 'Python suite, batch-invariant' env ROCMFORGE_BATCH_INVARIANT=1 \
    "$python" -m pytest "$here/tests" -q -rs -p no:cacheprovider "${cpu_only[@]}"
run 'golden models, default mode' "$python" -m pytest "$here/tests/test_golden_model.py" -q -rs -p no:cacheprovider
if command -v compute-sanitizer >/dev/null; then
    run 'memory checker' compute-sanitizer --error-exitcode 1 --target-processes all \
        "$python" -m pytest "$here/tests/test_golden_model.py" -q -p no:cacheprovider -k architectures
fi

if [ ${#failed[@]} -gt 0 ]; then
    printf 'FAILED: %s\n' "${failed[@]}"
    exit 1
fi
echo 'all green on the GPU'
