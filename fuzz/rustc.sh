#!/bin/sh
# Runs in place of rustc for the crates of this workspace (RUSTC_WORKSPACE_WRAPPER): the engine and what checks it are
# compiled with the coverage pass that libFuzzer reads. Libraries are not, so all its attention goes to our code.
rustc=$1
shift
case " $* " in
*" --crate-name build_script_build "*) ;;
*)
    set -- "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
        -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
        -Cllvm-args=-sanitizer-coverage-trace-compares
    ;;
esac
exec "$rustc" "$@"
