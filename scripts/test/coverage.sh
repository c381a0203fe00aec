#!/usr/bin/env bash
# Lines and regions that the unit tests of the integer and text crates execute, by crate, and those that they do not:
# scripts/test/coverage.sh [CRATE...], by the folders in src; fails below 95 % of a crate's lines. Branches need a
# nightly compiler; a region is a stretch of code that runs as a whole, so both arms of a branch are regions.
set -euo pipefail
cd "$(dirname "$0")/../.."

modules=("$@")
[ $# -gt 0 ] || modules=(scheduler kv_cache gguf sampler tokenizer)
work=target/coverage
host=$(rustc -vV | sed -n 's/^host: //p')
tools=$(rustc --print sysroot)/lib/rustlib/$host/bin
mkdir -p "$work"
if [ ! -x "$tools/llvm-cov" ]; then
    echo '==> coverage: installing llvm-tools, of the version of rustc'
    rustup --quiet component add llvm-tools
fi

echo '==> coverage: building'
packages=("${modules[@]/#/--package=rocmforge-}")
built=$(RUSTC_WORKSPACE_WRAPPER="$PWD/scripts/test/rustc_coverage.sh" scripts/test/test_program.sh \
    cargo test "${packages[@]//_/-}")
mapfile -t programs <<<"$built"

echo '==> coverage: running the tests of' "${modules[@]}"
rm -f "$work"/*.profraw
for program in "${programs[@]}"; do
    LLVM_PROFILE_FILE="$work/%p.profraw" "$program" --quiet >"$work/tests.log" || { cat "$work/tests.log"; exit 1; }
    grep '^test result' "$work/tests.log"
done
"$tools/llvm-profdata" merge --sparse "$work"/*.profraw --output "$work/tests.profdata"
others=("${programs[@]:1}")
report() {
    "$tools/llvm-cov" export "${programs[0]}" "${others[@]/#/--object=}" --instr-profile="$work/tests.profdata" "$@" \
        "${modules[@]/#/src/}"
}
report --format=lcov >"$work/lines.lcov"
report --format=text --skip-expansions >"$work/regions.json"
python3 scripts/test/coverage_report.py "$work/lines.lcov" "$work/regions.json" "${modules[@]}" | tee "$work/report.txt"
