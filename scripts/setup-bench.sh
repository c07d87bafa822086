#!/usr/bin/env bash
# Sets up the peer that cannot live in .venv. Does nothing when it is there already.
set -euo pipefail
cd "$(dirname "$0")/.."

requirements=bench/ministack-requirements.txt
ministack=.venvs/ministack

if ! cmp -s "$requirements" "$ministack/installed.txt"; then
    echo "setting up $ministack"
    .venv/bin/python -m venv --clear "$ministack"
    "$ministack/bin/pip" install --quiet --disable-pip-version-check -r "$requirements"
    cp "$requirements" "$ministack/installed.txt"
fi
