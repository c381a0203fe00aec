#!/bin/sh
# Runs in place of rustc for the crates of this workspace (RUSTC_WORKSPACE_WRAPPER): counts what is executed of them.
# The libraries stay those of every other build.
rustc=$1
shift
case " $* " in
*" --crate-name build_script_build "*) exec "$rustc" "$@" ;;
*) exec "$rustc" "$@" -Cinstrument-coverage ;;
esac
