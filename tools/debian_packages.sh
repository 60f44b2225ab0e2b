#!/usr/bin/env bash
# Installs Debian packages, as root or through sudo: tools/debian_packages.sh PACKAGE...
set -euo pipefail

run=()
if [ "$(id -u)" != 0 ]; then
  run=(sudo)
fi
if ! command -v apt-get >/dev/null || { [ "${#run[@]}" != 0 ] && ! command -v sudo >/dev/null; }; then
  echo "narrowcast needs what these Debian packages hold, and cannot install them itself: $*" >&2
  echo "Install them (on other systems: their equivalents) and start again." >&2
  exit 1
fi
echo "narrowcast: installing the Debian packages $*"
"${run[@]}" apt-get update -q
"${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"
