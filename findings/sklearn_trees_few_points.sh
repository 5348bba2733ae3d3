#!/usr/bin/env bash
# scikit-learn's HistGradientBoostingClassifier as a two-sample test: blind for few points.
#
# Guess:         a cross-validated classifier tells 15 points of scale 1 from 15 points of scale 100, so its
#                AUC is near 1.
# What happens:  the AUC is exactly 0.5. A leaf needs 20 points (min_samples_leaf), so 24 points of a fold
#                are never split, and there is no warning. With min_samples_leaf=3 it is above 0.9.
# Why it matters: classifier two-sample tests read 0.5 as "the two samples cannot be told apart".
# Versions:      scikit-learn 1.9.1
# Exit code:     0: as described; 1: the behaviour changed; 2: the packages cannot be installed
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install --quiet scikit-learn==1.9.1 numpy==2.4.6 || exit 2
cd "$folder" && venv/bin/python - <<'PY'
import sys

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict


def auc(points, **settings):
    draws = np.random.default_rng(0)
    x = np.concatenate([draws.normal(size=(points, 3)), 100 * draws.normal(size=(points, 3))])
    y = np.repeat([0, 1], points)
    model = HistGradientBoostingClassifier(random_state=0, **settings)
    chances = cross_val_predict(model, x, y, cv=5, method="predict_proba")[:, 1]
    return roc_auc_score(y, chances)


few, small_leaves, many = auc(15), auc(15, min_samples_leaf=3), auc(200)
print(f"AUC of 15 and 15 points: {few:.2f}; with leaves of 3 points {small_leaves:.2f}")
print(f"AUC of 200 and 200 points: {many:.2f}")
sys.exit(not (few == 0.5 and small_leaves > 0.9 and many > 0.99))
PY
