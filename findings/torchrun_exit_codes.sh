#!/usr/bin/env bash
# torchrun ends with exit code 1, whatever the exit code of the script.
#
# Guess:         with one process, the exit code of torchrun is the exit code of the script.
# What happens:  a script that ends with 2, 75, or by a signal makes torchrun end with 1. The exit code of the script
#                stands in the table on stderr only. If the script catches SIGTERM, saves and ends with 75,
#                torchrun, which received the signal, ends with 1 too.
# Why it matters: a job that puts itself back into the queue at exit code 75, or that does not repeat a wrong
#                setting (2), cannot tell these from a crash.
# Remedy:        let process 0 write the reason into a file, and let the job read it; or start one process by python.
# Versions:      torch 2.13.0
# Exit code:     0: as described; 1: the behaviour changed; 2: the packages cannot be installed
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 || exit 2
cd "$folder"
cat >train.py <<'PY'
import os
import signal
import sys
import time
from pathlib import Path

if sys.argv[1] == "waits":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    Path("ready").touch()
    time.sleep(300)
elif sys.argv[1] == "signal":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(sys.argv[1]))
PY
export OMP_NUM_THREADS=1
code=0
for word in 2 75 signal; do
  venv/bin/torchrun --nproc-per-node 1 train.py $word >said 2>&1
  ended=$?
  echo "script: $word, torchrun: $ended, on stderr: $(grep -o 'exitcode *: [-0-9]*' said | tail -n 1)"
  [ $ended -eq 1 ] || code=1
done
venv/bin/torchrun --nproc-per-node 1 train.py waits >said 2>&1 &
torchrun=$!
until [ -e ready ]; do sleep 0.2; done
kill -TERM $torchrun
wait $torchrun
ended=$?
echo "script: 75 after SIGTERM, torchrun: $ended"
[ $ended -eq 1 ] || code=1
exit $code
