#!/usr/bin/env bash
# Make .venv with this package (editable) and the extras given as $1, on Debian 12 or a current Ubuntu, as root or with sudo.
# System packages are installed only when they are missing. Running it again costs nothing when nothing changed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

extras=${1:-test,pyfuse3,bench}
venv=.venv
stamp=$venv/.tiercache-stamp

say() { printf 'bootstrap: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"
    elif ! command -v sudo >/dev/null; then die "root is needed to run: $* (or install sudo)"
    elif [ -t 0 ]; then sudo "$@"
    else sudo -n "$@" || die "sudo asks for a password, and there is no terminal; run as root: $*"
    fi
}

good_python() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

# The first interpreter that is new enough; empty if there is none.
find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
        if good_python "$candidate"; then command -v "$candidate"; return; fi
    done
}

missing_packages() {
    local python version
    python=$(find_python)
    if [ -z "$python" ]; then
        # Ubuntu 22.04 has 3.10 as python3, and 3.11 beside it.
        if apt-cache policy python3 2>/dev/null | grep -qE 'Candidate: 3\.(9|10)\.'; then
            echo python3.11 python3.11-venv python3.11-dev
        else
            echo python3 python3-venv python3-dev
        fi
    else
        version=$("$python" -c 'import sys; print("python3" if sys.executable == "/usr/bin/python3" else "python%d.%d" % sys.version_info[:2])')
        "$python" -c 'import ensurepip, venv' 2>/dev/null || echo "$version-venv"
        "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' || echo "$version-dev"
    fi
    command -v gcc >/dev/null || echo gcc libc6-dev
    command -v pkg-config >/dev/null || echo pkg-config
    pkg-config --exists fuse3 2>/dev/null || echo libfuse3-dev
    command -v fusermount3 >/dev/null || echo fuse3
    [ -e /etc/ssl/certs/ca-certificates.crt ] || echo ca-certificates
    if [[ ",$extras," == *,test,* ]]; then
        # The programs that tests run on mounts.
        for program in git rsync fio; do command -v "$program" >/dev/null || echo "$program"; done
        # libcachesim's wheel brings everything but this. Newer releases call the package libglib2.0-0t64, and know the old name.
        "${python:-false}" -c 'import ctypes; ctypes.CDLL("libglib-2.0.so.0")' 2>/dev/null || echo libglib2.0-0
    fi
    if [[ ",$extras," == *,peers,* ]] && ! command -v s3fs >/dev/null; then echo s3fs; fi
}

install_packages() {
    local packages
    packages=$(missing_packages | tr '\n' ' ')
    [ -n "${packages// /}" ] || return 0
    command -v apt-get >/dev/null || die "install these by your system's means and try again: $packages"
    say "installing system packages: $packages"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 update >&2
    # A fresh system's lists are empty, so which Python it has is known only now.
    packages=$(missing_packages | tr '\n' ' ')
    # shellcheck disable=SC2086 # one word per package
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 \
        install -y --no-install-recommends $packages >&2
    packages=$(missing_packages | tr '\n' ' ')
    [ -z "${packages// /}" ] || die "still missing after the installation: $packages"
}

# What the environment depends on, so that it is made anew when that changes (or when the folder was moved).
fingerprint() { { "$1" -VV; pwd -P; sha256sum < pyproject.toml; } | sha256sum | cut -d' ' -f1; }

holds_extras() {
    local extra
    for extra in ${extras//,/ }; do
        grep -qxF "$extra" "$stamp" || return 1
    done
}

main() {
    local python print
    install_packages
    python=$(find_python)
    [ -n "$python" ] || die "Python 3.11 or later is needed; set PYTHON to one"
    print=$(fingerprint "$python")
    if [ "$(head -n 1 "$stamp" 2>/dev/null)" != "$print" ]; then
        say "making $venv with $("$python" -V)"
        rm -rf "$venv"
        "$python" -m venv "$venv"
        # Some distributions' pips (25.1 of Debian 13) do not find in a quarter of an hour which botocore suits all.
        "$venv/bin/python" -m pip --disable-pip-version-check --no-input install --quiet --progress-bar off --upgrade pip >&2
        echo "$print" > "$stamp.new"
    elif holds_extras; then
        return 0
    else
        cp "$stamp" "$stamp.new"
    fi
    # Extras that are there already are named again, so that pip keeps all their bounds together.
    extras=$( { tail -n +2 "$stamp.new"; tr ',' '\n' <<< "$extras"; } | sort -u | paste -sd,)
    say "installing tiercache-fs[$extras]; this takes a few minutes the first time"
    # Warnings: setuptools warns of every editable installation, in fifteen lines.
    PYTHONWARNINGS=ignore "$venv/bin/python" -m pip --disable-pip-version-check --no-input install --quiet --progress-bar off \
        -e ".[$extras]" >&2
    { echo "$print"; tr ',' '\n' <<< "$extras"; } > "$stamp.new"
    mv "$stamp.new" "$stamp"
}

# One at a time: two makes may run side by side. The lock ends with the process.
exec 9< scripts/bootstrap.sh
flock 9
main
