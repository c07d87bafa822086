#!/usr/bin/env bash
# Usage: scripts/setup.sh [EXTRA]   installs Penstock into .venv, with an extra of pyproject.toml if one is named
set -euo pipefail
cd "$(dirname "$0")/.."

extra="${1:-}"
venv=.venv
python_is_new_enough='import sys; sys.exit(sys.version_info < (3, 10))'
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 DEBIAN_FRONTEND=noninteractive

say() { printf 'setup: %s\n' "$*" >&2; }

fail() {
    say "$@"
    exit 1
}

can_apt() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

apt_install() {
    say "installing $* with apt-get"
    apt-get install -y --no-install-recommends "$@" >/dev/null 2>&1 ||
        { apt-get update >/dev/null && apt-get install -y --no-install-recommends "$@" >/dev/null; }
}

find_python() {
    local candidate
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
        if command -v "$candidate" >/dev/null && "$candidate" -c "$python_is_new_enough"; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

can_make_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

make_venv() {
    local python version
    if ! python=$(find_python); then
        can_apt || fail "Python 3.10 or newer is needed: install it (Debian: apt-get install python3 python3-venv), then run make again"
        apt_install python3 python3-venv
        python=$(find_python) || fail "this system's python3 is older than 3.10: install a newer Python, then run make again"
    fi
    if ! can_make_venv "$python"; then
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        can_apt || fail "$python has no venv module: install it (Debian: apt-get install python$version-venv), then run make again"
        apt_install "python$version-venv" || apt_install python3-venv
        can_make_venv "$python" || fail "$python still has no venv module: install python$version-venv, then run make again"
    fi
    say "creating $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv"
}

java_is_new_enough() {
    local java version
    java="${JAVA_HOME:+$JAVA_HOME/bin/}java"
    command -v "$java" >/dev/null || java=java
    version=$("$java" -version 2>&1 | sed -nE 's/.*version "([0-9]+).*/\1/p' | head -n 1)
    [ "${version:-0}" -ge 17 ]
}

# Spark needs Java; the server does not, so that its absence is no reason to stop here.
ensure_java() {
    local package
    java_is_new_enough && return
    if can_apt; then
        for package in default-jre-headless openjdk-21-jre-headless openjdk-17-jre-headless; do
            if apt_install "$package" && java_is_new_enough; then return; fi
        done
    fi
    say "no Java 17 or newer was found, which delivering with Spark needs: install one (Debian: apt-get install default-jre-headless) or set JAVA_HOME"
}

if ! "$venv/bin/python" -c "$python_is_new_enough" 2>/dev/null || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    make_venv
fi
say "installing Penstock${extra:+ with its $extra extra} into $venv (the first time, 1 GB in a few minutes)"
"$venv/bin/python" -m pip install --quiet --editable ".${extra:+[$extra]}"
if [ -z "$extra" ]; then ensure_java; fi
touch "$venv/.installed${extra:+-$extra}"
