#!/usr/bin/env bash
# Gets what a build needs and does not find: Debian packages, and a virtual environment with the Python packages
# of requirements.txt and libraries.txt. What is there already is not asked for again:
#   [TORCH=VERSION] [LIBRARIES=OFF] [ONLY="PACKAGE..."] tools/setup.sh VENV [PYTHON]
# TORCH: another torch than requirements.txt names. LIBRARIES=OFF: none of libraries.txt. ONLY: of requirements.txt the packages that
# are named, for a build without tests and without the generator.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
venv=$1
oldest="import sys; sys.exit(sys.version_info < (3, 10))"

has_header() { echo "#include <$1>" | c++ -std=c++20 -fsyntax-only -x c++ - 2>/dev/null; }

missing=()
command -v c++ >/dev/null || missing+=(g++)
command -v cmake >/dev/null || missing+=(cmake)
command -v ninja >/dev/null || missing+=(ninja-build)
if [ -z "${ONLY:-}" ]; then
  has_header toml++/toml.h || missing+=(libtomlplusplus-dev)
  has_header doctest/doctest.h || missing+=(doctest-dev)
fi

python=
for candidate in "${2:-}" "$venv/bin/python" python3 python3.{14,13,12,11,10}; do
  if [ -n "$candidate" ] && "$candidate" -c "$oldest" 2>/dev/null; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  python=python3
  missing+=(python3 python3-venv python3-dev)
else
  [ -x "$venv/bin/python" ] || "$python" -c "import ensurepip, venv" 2>/dev/null || missing+=(python3-venv)
  "$python" -c "import os, sys, sysconfig
sys.exit(not os.path.exists(sysconfig.get_path('include') + '/Python.h'))" || missing+=(python3-dev)
fi
if [ "${#missing[@]}" != 0 ]; then
  "$here/debian_packages.sh" "${missing[@]}"
fi
if ! "$python" -c "$oldest"; then
  echo "narrowcast needs Python 3.10 or newer; $("$python" --version) is what this system offers." >&2
  exit 1
fi

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
requirements() { sed "${TORCH:+s/^torch==.*/torch==$TORCH/}" "$here/requirements.txt"; }
wanted=()
if [ -n "${ONLY:-}" ]; then
  read -ra wanted <<<"$ONLY"
  wanted+=(-c)
else
  [ "${LIBRARIES:-ON}" = OFF ] || wanted+=(-r "$here/libraries.txt")
  wanted+=(-r)
fi
"$venv/bin/python" -m pip install --disable-pip-version-check -q "${wanted[@]}" <(requirements)
