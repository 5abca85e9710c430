#!/usr/bin/env bash
# The quickstart with three seeds: other tasks, other chance, and the same question. Is every one of them lifted?
# About as long as three times `make demo`; a second call goes on where the first one stopped.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
store=.holdfast/three-seeds/store.sqlite
for seed in 1 2 3; do
  holdfast quickstart --seed "$seed" --store "$store" "$@"
done
holdfast runs --store "$store"
