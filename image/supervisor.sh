#!/usr/bin/env bash
# Steps of the Dockerfile: rl-supervisor in an environment of its own, its dependencies first, since they change rarely.
#
#   supervisor.sh dependencies    what pyproject.toml names, in the versions of constraints.txt
#   supervisor.sh program         the program itself, and the names of its commands in /opt/names
#
# The current folder holds the sources. pip's cache is the caller's (a cache mount), never a layer's.
set -euo pipefail
venv=/opt/rl-supervisor names=/opt/names

# Of the project's optional parts: stores at s3://. py-spy makes the evidence's stacks (docs/evidence.md, "Stacks").
wanted() {
  python3 - <<'END'
import tomllib
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
print(*project["dependencies"], *project["optional-dependencies"]["s3"], "py-spy", sep="\n")
END
}

case ${1:-} in
dependencies)
  python3 -m venv "$venv"
  wanted >/tmp/wanted
  "$venv/bin/pip" install --quiet --disable-pip-version-check -c constraints.txt -r /tmp/wanted
  rm /tmp/wanted
  ;;
program)
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps .
  "$venv/bin/pip" check --disable-pip-version-check
  mkdir -p "$names"
  ln -s "$venv/bin/rl-supervisor" "$venv/bin/rl-supervisorctl" "$venv/bin/supervisorctl" "$names"
  install -m 755 units/onstart.sh "$names/rl-supervisor-onstart"
  install -m 755 "$(dirname "$0")/health.sh" "$names/rl-supervisor-health"
  "$venv/bin/python" -m supervisor.cli.manuals /opt/share
  "$names/rl-supervisor" version
  ;;
*)
  echo "supervisor.sh: dependencies or program" >&2
  exit 2
  ;;
esac
