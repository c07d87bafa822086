#!/usr/bin/env bash
# Sets up the SDKs that cannot live in .venv. Does nothing when they are there already.
set -euo pipefail
cd "$(dirname "$0")/.."

node_dir=tests/conformance/node
python=.venv/bin/python
[ -x "$python" ] || python=python3

for name in greengrass awscli; do
    requirements=tests/conformance/$name-requirements.txt
    venv=.venvs/$name
    if ! cmp -s "$requirements" "$venv/installed.txt"; then
        echo "setting up $venv"
        "$python" -m venv --clear "$venv"
        "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$requirements"
        cp "$requirements" "$venv/installed.txt"
    fi
done

if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "The tests need Node.js 18 or newer with npm. Install them (Debian: apt-get install nodejs npm) and run this again." >&2
        exit 1
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nodejs npm
fi

if ! cmp -s "$node_dir/package-lock.json" "$node_dir/node_modules/.installed-lock.json"; then
    echo "setting up $node_dir/node_modules"
    (cd "$node_dir" && npm ci --no-audit --no-fund --silent)
    cp "$node_dir/package-lock.json" "$node_dir/node_modules/.installed-lock.json"
fi
