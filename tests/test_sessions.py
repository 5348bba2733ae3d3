import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsgf.phases.base import Preparation
from nsgf.sessions import SHOWN, Part, session_lines, sessions, training_hours
from nsgf.system.errors import UserError


def test_what_each_session_begins_with_is_told_from_what_is_done_once():
    prepared = [
        (Preparation("pool", print, 1, "--this"), 5.0),
        (Preparation("pairs", print, 1), 3.0),
        (Preparation("steps", print, 1), 4.0),
        (Preparation("paths", print, 1, "fewer of them"), 2.0),
    ]
    assert Part.of("a", 10.0, prepared) == Part("a", 17.0, 7.0, "--this and fewer of them")
    assert Part.of("a", 10.0, []) == Part("a", 10.0)


@given(
    st.lists(st.tuples(st.floats(0, 50), st.floats(0, 0.9)), min_size=1, max_size=5),
    st.floats(1, 20),
)
def test_sessions_add_up(drawn, limit):
    """Nothing is lost, no session is too long, and what begins anew is paid for each time."""
    parts = [Part(str(number), left, again) for number, (left, again) in enumerate(drawn)]
    found = sessions(parts, limit)
    assert all(math.fsum(spent for _, spent in one) <= limit * (1 + 1e-9) for one in found)
    for name, left, again, _ in parts:
        spent = [seconds for one in found for part, seconds in one if part == name]
        assert math.fsum(spent) == pytest.approx(left + again * len(spent), abs=1e-9)
    order = [int(name) for one in found for name, _ in one]
    assert order == sorted(order)


def test_sessions_on_paper():
    parts = [Part("a", 10, 2, "less of it"), Part("b", 5)]
    assert sessions(parts, 8) == [[("a", 8)], [("a", 6), ("b", 2)], [("b", 3)]]
    assert sessions(parts, 100) == [[("a", 12), ("b", 5)]]
    told = r"--session-hours: a begins with 2\.0 s in each session; .* or less of it"
    with pytest.raises(UserError, match=told):
        sessions(parts, 2)


def test_hours_of_a_session_leave_room_for_its_end():
    assert [training_hours(hours) for hours in (12, 5, 1)] == [11.5, 4.5, 0.9]
    for wrong in (0, -1, math.nan, math.inf):
        with pytest.raises(UserError, match="--session-hours = "):
            training_hours(wrong)


def test_each_session_has_its_command():
    first, *commands = session_lines([Part("a", 3600), Part("b", 5400)], 1, "train --exp x")
    assert first == "all phases: about 2.5 h, sessions: 3"
    assert [line.partition("#")[0].strip() for line in commands] == [
        "train --exp x --max-hours 1",
        *["train --exp x --resume --max-hours 1"] * 2,
    ]
    assert commands[2].endswith("# b 30.0 min")
    many = session_lines([Part("a", 1e6)], 1, "train")
    assert len(many) == 1 + SHOWN + 1
