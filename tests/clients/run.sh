#!/bin/sh
# tests/clients/run.sh: the real client packages against build/cairn, in an environment outside the tree.
set -eu
cd "$(dirname "$0")/../.."
venv=${XDG_CACHE_HOME:-$HOME/.cache}/cairn-tests/clients
if [ ! -x "$venv/bin/pytest" ]; then
    /usr/bin/python3 -m venv "$venv"
    "$venv/bin/pip" install -q --disable-pip-version-check 'openai>=1.50,<3' 'pytest>=7,<9' 'safetensors>=0.4' numpy
fi
exec "$venv/bin/pytest" -q -p no:cacheprovider tests/clients
