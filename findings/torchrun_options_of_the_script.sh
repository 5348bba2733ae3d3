#!/usr/bin/env bash
# torchrun: options behind the script's name can end in an error of torchrun.
#
# Guess:         `torchrun --nproc-per-node 1 train.py --run 3` passes everything behind train.py to train.py.
# What happens:  torchrun ends with "ambiguous option: --run could match --run-path, --run_path" before the script
#                starts. Each option of torchrun has two spellings, so each beginning of a name of several words is
#                ambiguous: --run, --start, --node, --log, --max. The whole name, such as --max-restarts, arrives.
# Why it matters: a script's --run, --log or --max works with `python`, and with torchrun only until a new version
#                of torchrun has one more option that begins like this.
# Remedy:        write -- before the script's arguments: `torchrun ... train.py -- --run 3`.
# Versions:      torch 2.13.0, Python 3.10 to 3.13
# Exit code:     0: as described; 1: the behaviour changed; 2: the packages cannot be installed
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 || exit 2
cd "$folder"
echo 'import sys; print("the script got", *sys.argv[1:])' >train.py
code=0
for words in "--run 3" "--start 3" "--node 3" "--log 3" "--max 3"; do
  # shellcheck disable=SC2086  # the words are two arguments
  said=$(OMP_NUM_THREADS=1 venv/bin/torchrun --nproc-per-node 1 train.py $words 2>&1) && code=1
  echo "$words: $(tail -n 1 <<<"$said")"
  [[ $said == *"ambiguous option"* ]] || code=1
done
for words in "--max-restarts 3" "--epochs 3" "-- --run 3"; do
  # shellcheck disable=SC2086
  said=$(OMP_NUM_THREADS=1 venv/bin/torchrun --nproc-per-node 1 train.py $words 2>&1) || code=1
  echo "$words: $(tail -n 1 <<<"$said")"
  [[ $said == *"the script got ${words#-- }"* ]] || code=1
done
exit $code
