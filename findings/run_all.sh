#!/usr/bin/env bash
# Run all scripts of this folder and print one line for each: "same", "changed" or "not installed".
# Exit code 0 if all are the same.
here=$(cd "$(dirname "$0")" && pwd)
code=0
for script in "$here"/*.sh; do
  [ "$script" -ef "$0" ] && continue
  bash "$script" >/dev/null 2>&1
  case $? in
    0) word=same ;;
    2) word="not installed"; code=1 ;;
    *) word=changed; code=1 ;;
  esac
  echo "$(basename "$script" .sh): $word"
done
exit $code
