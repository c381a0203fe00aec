#!/usr/bin/env bash
# Lines and regions that the unit tests of the integer and text modules execute, by module, and those that they do not:
# scripts/coverage.sh [MODULE...]; fails below 95 % of a module's lines. Branches need a nightly compiler; a region is a
# stretch of code that runs as a whole, so both arms of a branch are regions.
set -euo pipefail
cd "$(dirname "$0")/.."

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
program=$(RUSTC_WORKSPACE_WRAPPER="$PWD/scripts/rustc_coverage.sh" scripts/test_program.sh cargo test)

echo '==> coverage: running the tests of' "${modules[@]}"
rm -f "$work"/*.profraw
LLVM_PROFILE_FILE="$work/%p.profraw" "$program" --quiet "${modules[@]/%/::}" >"$work/tests.log" ||
    { cat "$work/tests.log"; exit 1; }
grep '^test result' "$work/tests.log"
"$tools/llvm-profdata" merge --sparse "$work"/*.profraw --output "$work/tests.profdata"
"$tools/llvm-cov" export "$program" --instr-profile="$work/tests.profdata" --format=lcov \
    "${modules[@]/#/src/}" >"$work/lines.lcov"
"$tools/llvm-cov" export "$program" --instr-profile="$work/tests.profdata" --format=text --skip-expansions \
    "${modules[@]/#/src/}" >"$work/regions.json"
python3 scripts/coverage_report.py "$work/lines.lcov" "$work/regions.json" "${modules[@]}" | tee "$work/report.txt"
