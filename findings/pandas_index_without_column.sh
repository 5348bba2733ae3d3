#!/usr/bin/env bash
# pandas and Parquet: whether the file has a column for a named index depends on the values.
#
# Guess:         DataFrame.set_index("time").to_parquet(file) writes the column "time", which pyarrow and
#                polars read back.
# What happens:  this is so for the values 1, 2, 4. Equally spaced whole numbers (1, 2, 3; years, frames,
#                row numbers) become a RangeIndex, and the file has no such column: only pandas, which reads
#                its own metadata, has the values. pandas in turn hides the column of 1, 2, 4 in its index.
# Why it matters: two readers of one file see tables of different width, and a network trains on one
#                coordinate less.
# Versions:      pandas 3.1.1, pyarrow 26.0.1, polars 2.1.0
# Exit code:     0: as described; 1: the behaviour changed; 2: the packages cannot be installed
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install --quiet pandas==3.1.1 pyarrow==26.0.1 polars==2.1.0 numpy==2.4.6 || exit 2
cd "$folder" && venv/bin/python - <<'PY'
import sys

import pandas as pd
import polars as pl
import pyarrow.parquet as pq

seen = []
for times in ([1, 2, 4], [1, 2, 3]):
    frame = pd.DataFrame({"time": times, "x": [0.5, 0.7, 0.9]}).set_index("time")
    frame.to_parquet("table.parquet")
    back = pd.read_parquet("table.parquet")
    columns = pq.read_schema("table.parquet").names, pl.read_parquet("table.parquet").columns
    print(f"time {times}: pyarrow {columns[0]}, polars {columns[1]}, pandas {[*back.columns]}", end="")
    print(f" with the index {back.index.name} {back.index.tolist()}")
    seen.append((sorted(columns[0]), sorted(columns[1]), [*back.columns], back.index.tolist()))
irregular = (["time", "x"], ["time", "x"], ["x"], [1, 2, 4])
regular = (["x"], ["x"], ["x"], [1, 2, 3])
sys.exit(seen != [irregular, regular])
PY
