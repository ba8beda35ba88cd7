#!/bin/sh
# Puts vramcast into a folder of its own, from the locked requirements. The Dockerfile runs it, and so does its test.
#
#   install.sh SOURCE TARGET      needs python3 with venv; ends with TARGET/bin/vramcast
set -eu

source=$1
target=$2
python=${PYTHON:-python3}
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT

# Built apart, and installed from there: neither what builds the wheel nor pip itself is shipped.
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

# Nobody runs the libraries' own tests.
find "$target" -depth -type d \( -name tests -o -name test \) -exec rm -rf {} +
# The client's asynchronous twin, as large as itself, and never imported.
rm -rf "$target"/lib/python*/site-packages/kubernetes/aio
# The root file system is read-only at run time, so the byte code is made here.
"$target/bin/python" -m compileall -q -j 0 "$target/lib"
