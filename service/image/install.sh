#!/bin/sh
# Installs vramcast and its locked packages into a directory of its own. The Dockerfile and tests/image run it.
#
#   install.sh SOURCE TARGET      needs python3 with venv; creates TARGET/bin/vramcast
set -eu

source=$1
target=$2
python=${PYTHON:-python3}
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT

# The wheel is built in a venv that is thrown away: neither the build tools nor pip end up in the image.
"$python" -m venv "$build/venv"
pip="$build/venv/bin/python -m pip --disable-pip-version-check --quiet"
# shellcheck disable=SC2086
$pip install --no-compile --require-hashes --requirement "$source/requirements/build.txt"
# shellcheck disable=SC2086
$pip wheel --no-deps --no-build-isolation --wheel-dir "$build" "$source"

"$python" -m venv --without-pip "$target"
pip="$pip --python $target/bin/python"
# shellcheck disable=SC2086
$pip install --no-compile --only-binary :all: --require-hashes --requirement "$source/requirements/serve.txt"
# shellcheck disable=SC2086
$pip install --no-compile --no-deps "$build"/vramcast-*.whl

# The libraries ship their tests; the service never runs them.
find "$target" -depth -type d \( -name tests -o -name test \) -exec rm -rf {} +
# The asynchronous Kubernetes client is as large as the one that the service imports, and unused.
rm -rf "$target"/lib/python*/site-packages/kubernetes/aio
# The root file system is read-only at run time, so compile the bytecode now.
"$target/bin/python" -m compileall -q -j 0 "$target/lib"
