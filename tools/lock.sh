#!/usr/bin/env bash
# Makes requirements-server.txt and requirements-build.txt: every version of constraints.txt with the hashes of all its
# files, for any platform. Needs the public index: another may hold some of the files only.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=$1
compile() {
  "$uv" pip compile --quiet --generate-hashes --universal --python-version 3.11 --no-header --no-annotate "$@"
}
{
  echo '# The server with all it needs, by hash: what the image is built from, and what make lint looks up (make lock makes it).'
  echo '# Python 3.11 and newer; within constraints.txt.'
  compile pyproject.toml --extra server --extra otlp --constraint constraints.txt
} > requirements-server.txt.new
{
  echo '# What builds the wheel, by hash (make lock makes it).'
  echo hatchling | compile -
} > requirements-build.txt.new
mv requirements-server.txt.new requirements-server.txt
mv requirements-build.txt.new requirements-build.txt
