#!/usr/bin/env bash
# The tests on the GPU of this machine: conformance of every kernel (Rust), the Python suite in batch-invariant mode,
# the golden models in the default mode, and the golden models once more under the vendor's memory checker where it
# runs. A part that cannot run is a failure; only the memory checker may be absent.
#
# Usage: test_gpu.sh [--python PYTHON] [--wheel WHEEL] [--conformance BINARY] [--dev FOLDER]
#   --python       an interpreter with what requirements-dev.txt names; by default python3
#   --wheel        tests this wheel, installed for the time of the tests, in place of what PYTHON has
#   --conformance  the compiled Rust tests, for machines without Rust; by default cargo builds them. Elsewhere
#                  `cargo test --locked -p rocmforge-gpu --lib --no-run` makes the binary and prints where it is
#   --dev          where the system's device files are; by default /dev
set -uo pipefail

here=$(cd "$(dirname "$0")/../.." && pwd)
python=python3 wheel='' conformance='' dev=/dev
while [ $# -gt 0 ]; do
    case $1 in
    --python | --wheel | --conformance | --dev)
        [ $# -gt 1 ] || { echo "$1 needs a value" >&2; exit 2; }
        declare "${1#--}=$2"
        shift 2
        ;;
    *)
        sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2
        exit 2
        ;;
    esac
done

die() {
    printf 'FAILED: %s\n' "$1" >&2
    exit 1
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -n "$wheel" ]; then
    "$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --target "$work/site" "$wheel" ||
        die "$wheel cannot be installed for $python ($("$python" --version))"
    export PYTHONPATH=$work/site${PYTHONPATH:+:$PYTHONPATH}
fi
if [ -n "$conformance" ]; then
    conformance=$(realpath "$conformance") && [ -x "$conformance" ] || die "--conformance: no program at $conformance"
fi
"$python" - <<'END' || die "$python lacks what the tests need (above): pip install --requirement requirements-dev.txt"
import importlib.util, sys
names = "rocmforge numpy typer rich pytest pytest_asyncio pytest_timeout xdist hypothesis gguf fastapi httpx uvicorn"
missing = [name for name in names.split() if importlib.util.find_spec(name) is None]
print(f"missing: {', '.join(missing)}") if missing else None
sys.exit(bool(missing))
END

# Tests start many processes: what one compiles, the others find.
if [ -z "${ROCMFORGE_CACHE_DIR:-}${XDG_CACHE_HOME:-}${HOME:-}" ]; then
    export ROCMFORGE_CACHE_DIR=$work/cache
fi
# The tests' own data, and pytest's settings.
cd "$here" || exit 1
echo '==> the GPU and its kernels'
# Whatever ROCMFORGE_DEVICE says.
doctor=$("$python" -m rocmforge doctor --device gpu) || die 'rocmforge doctor (above)'
printf '%s\n' "$doctor"
device=$(grep '^device gpu: ' <<<"$doctor")
if grep -q '^device gpu: not usable' <<<"$device"; then
    # AMD's, Windows' under WSL, NVIDIA's.
    for node in kfd dxg nvidiactl; do
        [ ! -e "$dev/$node" ] || die "there should be a GPU, since there is $dev/$node, and it cannot be used (see above)"
    done
    [ -z "$wheel$conformance${ROCMFORGE_GPU_LIBRARY:-}" ] ||
        die 'there should be a GPU, and it cannot be used (see above)'
    echo 'SKIPPED: no GPU that this build can use (see above)'
    exit 0
fi
export ROCMFORGE_DEVICE=gpu
# If a platform is named, Rust tests do not take the stand-in's devices for want of a GPU.
case $device in
*'(sm_'*) export ROCMFORGE_GPU_PLATFORM=nvidia ;;
*) export ROCMFORGE_GPU_PLATFORM=amd ;;
esac

summary=() failed=0
fail() {
    summary+=("FAILED   $1")
    failed=1
}

# Runs a part and keeps the line in which its runner counts: run NAME PATTERN COMMAND...
run() {
    local name=$1 pattern=$2 start=$SECONDS status figures
    shift 2
    printf '==> %s\n' "$name"
    "$@" 2>&1 | tee "$work/log"
    status=${PIPESTATUS[0]}
    figures=$(grep -E "$pattern" "$work/log" | tail -1)
    if [ "$status" -ne 0 ]; then
        fail "$name: ${figures:-no result}, exit status $status"
    elif ! grep -Eq '[1-9][0-9]* passed' <<<"$figures"; then
        fail "$name: nothing was tested (${figures:-no result})"
    elif grep -Eiq 'skipped: ' "$work/log"; then
        # Rust's runner has no word for it: a test without a device says so and returns.
        fail "$name: $figures, but some did not run: $(grep -Eio 'skipped: .*' "$work/log" | sort -u | head -3)"
    else
        summary+=("passed   $name: $figures, $((SECONDS - start)) s")
    fi
}
rust='^test result: ' pytest='^(=+ )?[0-9]+ (passed|failed|skipped|error).* in [0-9.]+s'

grep -Eq 'NOT USABLE|none of its kernels' <<<"$doctor" && fail 'kernels: some do not load (see above)'

on_device=(device_tests conformance::real_device on_this_machines_gpu --test-threads=1 --nocapture)
if [ -n "$conformance" ]; then
    run 'conformance' "$rust" "$conformance" "${on_device[@]}"
elif command -v cargo >/dev/null; then
    run 'conformance' "$rust" cargo test --quiet --locked -p rocmforge-gpu --lib -- "${on_device[@]}"
else
    fail 'conformance: no cargo here; give a compiled test binary with --conformance'
fi
# Sources, documents and the server's page are the same everywhere: make test checks them.
cpu_only=(--ignore tests/structure/test_architecture.py --ignore tests/docs/test_docs.py
    --ignore tests/docs/test_failure_classes.py --ignore tests/structure/test_scripts.py --ignore tests/server/page)
tests=("$python" -m pytest -q -rs -p no:cacheprovider)
run 'Python suite, batch-invariant' "$pytest" env ROCMFORGE_BATCH_INVARIANT=1 "${tests[@]}" tests "${cpu_only[@]}"
run 'golden models, default mode' "$pytest" "${tests[@]}" tests/models/test_golden_model.py

checker=''
for candidate in compute-sanitizer "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer"; do
    checker=$(command -v "$candidate") && break
done
# The memory checker may be forbidden to attach to programs in some containers; this one only opens the driver.
opens_driver='import ctypes; assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0'
if [ "$ROCMFORGE_GPU_PLATFORM" != nvidia ]; then
    summary+=('SKIPPED  memory checker: AMD has none of this kind; make test runs the same code in a simulator that checks')
elif [ -z "$checker" ]; then
    summary+=('SKIPPED  memory checker: compute-sanitizer is neither in the path nor in CUDA_HOME')
elif ! "$checker" --error-exitcode 1 "$python" -c "$opens_driver" >"$work/probe" 2>&1; then
    summary+=("SKIPPED  memory checker: it does not run here: $(grep -m1 -i 'error' "$work/probe")")
else
    # A launch takes many times as long, nearly all of it on the host: one process would need a quarter of an hour.
    run 'memory checker' "$pytest" "$checker" --error-exitcode 1 --target-processes all \
        "${tests[@]}" tests/models/test_golden_model.py -k architectures --timeout 3600 --numprocesses 8
fi

printf '\n==> on %s\n' "${device#device gpu: }"
printf '%s\n' "${summary[@]}"
[ $failed -eq 0 ] && echo 'all green on the GPU'
exit $failed
