import math

import pytest

from nsgf.compare.tables import (
    Cell,
    configured_plan,
    cost_table,
    difference_tables,
    measure_tables,
    plan_of_rows,
    verdict,
)
from tests.compare.table_rows import COMPARISON, ROWS, row


@pytest.mark.parametrize(
    ("differences", "metric", "word"),
    [
        ([-0.1, -0.11, -0.09], "w2", "ahead"),
        ([0.1, 0.11, 0.09], "w2", "behind"),
        ([0.1, -0.1, 0.05], "w2", "level"),
        ([0.1, 0.11, 0.09], "classifier_recall", "ahead"),
        ([-0.1], "w2", "(one measure)"),
        ([-0.1, -0.2, -0.15], "w2", "ahead"),
        ([-0.1, -0.3], "w2", "level"),  # two standard errors, but of two values
        ([-0.1, math.inf], "w2", "diverged"),
        ([], "w2", "-"),
    ],
)
def test_verdict(differences, metric, word):
    assert verdict(differences, metric).endswith(word)


def test_tables_have_lines_as_long_as_their_head():
    plan = plan_of_rows(ROWS)
    tables = [*measure_tables(plan, ROWS), *difference_tables(plan, ROWS), cost_table(plan, ROWS)]
    assert [table.head[0] for table in tables] == ["w2", "NSGF minus, w2", "cost"]
    for table in tables:
        assert {len(line) for line in [*table.lines, *table.foot]} == {len(table.head)}
    assert tables[0].lines[0] == [Cell("NSGF"), Cell("0.200 ± 0.100", is_best=True)]
    assert tables[0].foot == [[Cell("floor"), Cell("0.050")]]


def test_plan_of_rows_is_that_of_a_comparison_that_is_finished():
    """Where methods have rows of their own, the same seeds are expected of all of them."""
    assert plan_of_rows(ROWS) == configured_plan(COMPARISON, ROWS)
    plan = plan_of_rows([*ROWS, row("nsgf", 0, 0.3, 5)], ["icfm"], [10, 5])
    assert (plan.methods, plan.nfe) == (["icfm"], [10, 5])
    assert plan.measures["nsgf", ("moons", 5)] == 3
    assert ("icfm", ("moons", 5)) not in plan.measures


def test_of_one_method_there_are_no_differences():
    assert difference_tables(plan_of_rows(ROWS, ["nsgf"]), ROWS) == []
