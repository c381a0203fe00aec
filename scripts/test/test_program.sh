#!/usr/bin/env bash
# Builds the library's tests by a command of cargo's and prints where the program is: scripts/test/test_program.sh
# COMMAND...
set -euo pipefail

"$@" --quiet --locked --lib --no-run --message-format=json-render-diagnostics |
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p'
