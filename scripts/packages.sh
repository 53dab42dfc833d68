#!/bin/sh
# packages.sh build|test: prints the Debian packages that building, resp. testing needs, one a line.
# packages.sh install build|test: installs what is missing (as root), or says the command for it.
set -eu
build="gcc make pkg-config libc6-dev libmicrohttpd-dev libjansson-dev libsqlite3-dev libssl-dev libpcre2-dev
libutf8proc-dev libseccomp-dev libcurl4-openssl-dev libzstd-dev python3 python3-jinja2 python3-numpy libopenblas0-pthread python3-pip python3-venv curl ca-certificates"
test="$build libcmocka-dev python3-pytest strace jq clang libclang-rt-14-dev cppcheck clang-tidy mandoc git procps"

list() {
    case $1 in build) echo $build ;; test) echo $test ;; *) echo "packages.sh: build or test" >&2; exit 2 ;; esac
}

if [ "$1" != install ]; then
    list "$1" | tr ' ' '\n'
    exit 0
fi
missing=""
for p in $(list "$2"); do
    dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null | grep -q '^installed$' || missing="$missing $p"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" != 0 ]; then
    echo "These Debian packages are missing:$missing" >&2
    echo "Install them as root:  apt-get install --no-install-recommends$missing" >&2
    exit 1
fi
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq >/dev/null || true
apt-get install -y -qq --no-install-recommends $missing >/dev/null
