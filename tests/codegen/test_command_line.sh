#!/usr/bin/env bash
# The generator's command line, in a folder of its own. Usage: test_command_line.sh <narrowcast-codegen> <source folder>
set -euo pipefail
codegen=$1
source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$source"/spec/*.toml "$work"
cd "$work"

fail() {
  echo "FAILED: $1" >&2
  echo "output was: $output" >&2
  exit 1
}

# expect STATUS TEXT COMMAND...: the command's exit status, and a text that its output holds.
expect() {
  local status=0
  output=$("${@:3}" 2>&1) || status=$?
  [[ $status == "$1" ]] || fail "${*:3}: status $status, expected $1"
  [[ $output == *"$2"* ]] || fail "${*:3}: no '$2'"
}

specs=(*.toml)
expect 2 "usage:" "$codegen"
expect 2 "usage:" "$codegen" -o
expect 2 "usage:" "$codegen" --unknown -o out "${specs[@]}"
expect 1 "missing.toml: error: cannot be read" "$codegen" --check-specs missing.toml
expect 0 "" "$codegen" --check-specs "${specs[@]}"

expect 0 "wrote out/" "$codegen" -o out --golden golden "${specs[@]}"
expect 0 "" "$codegen" -o out --golden golden "${specs[@]}"
[[ -z $output ]] || fail "a second run wrote"

name=${specs[0]%.toml}
echo "edited" >>"out/$name/cast.hpp"
touch "out/$name/notes.txt"
expect 0 "wrote out/$name/cast.hpp" "$codegen" -o out "${specs[@]}"
[[ -e out/$name/notes.txt ]] || fail "removed what it did not make"

# What cannot be written or printed is an error with its reason.
full=">/dev/full"
[[ -c /dev/full ]] || full=">&-" # some containers have no such device
expect 1 "standard output is closed or full" bash -c '"$0" -o printed "$@" '"$full" "$codegen" "${specs[@]}"
expect 1 "golden_full/$name.txt.new: File too large" \
  bash -c 'trap "" XFSZ; ulimit -f 1; "$0" --known . -o full --golden golden_full "$@"' "$codegen" "$name.toml"
[[ $output != *froze* && ! -e golden_full/$name.txt ]] || fail "froze what was not written"

# Files say how they were made, and not where their spec happens to lie.
mkdir spec
cp "${specs[@]}" spec
expect 0 "wrote tree/$name/cast.hpp" "$codegen" --in-tree -o tree spec/*.toml
expect 0 "Made from spec/$name.toml; edit that and run \`make regenerate\`." cat "tree/$name/cast.hpp"
expect 0 "wrote own/$name/cast.hpp" "$codegen" --known spec -o own "spec/$name.toml"
expect 0 "Made from $name.toml; edit that and run \`narrowcast build\`." cat "own/$name/cast.hpp"

# Frozen bytes win over the spec, and nothing is written.
sed -i 's/^scale = .*/scale = "floor"/' mxfp8_e4m3.toml
expect 1 "no longer makes the golden bytes of mxfp8_e4m3" "$codegen" -o out --golden golden "${specs[@]}"
grep -q "Floor<" out/mxfp8_e4m3/cast.hpp && fail "wrote other bytes than the golden ones"

# Errors of all specs, in one run.
sed -i 's/^vocabulary = 1/vocabulary = 9/' "${specs[@]}"
expect 1 "${#specs[@]} errors" "$codegen" -o out "${specs[@]}"
echo ok
