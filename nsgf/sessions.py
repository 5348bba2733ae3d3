"""How a training run is shared out among sessions that end, each with its command."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nsgf.phases.base import Preparation
from nsgf.system.errors import UserError
from nsgf.system.hardware import format_hours

RESERVE_HOURS = 0.5
"""Of a session, for its start, its data and its last checkpoint."""
LONGEST, SHOWN = 10_000.0, 6
"""Hours of a session, and how many sessions are listed."""


class Part(NamedTuple):
    """A phase, as sessions share it out."""

    name: str
    seconds: float
    again: float = 0.0
    """Seconds that each session in which it goes on spends first."""
    remedy: str = ""
    """What avoids these."""

    @classmethod
    def of(cls, name: str, updates: float, prepared: Iterable[tuple[Preparation, float]]) -> "Part":
        """A phase whose updates take so many seconds, and each preparation its own."""
        prepared = list(prepared)
        again = [(each.again, seconds) for each, seconds in prepared if each.again]
        once = sum(seconds for each, seconds in prepared if not each.again)
        remedies = " and ".join(remedy for remedy, _ in again)
        return cls(name, updates + once, sum(seconds for _, seconds in again), remedies)


def sessions(parts: Sequence[Part], limit: float) -> list[list[tuple[str, float]]]:
    """Which phases each session trains, and for how many seconds, of at most ``limit`` in all.

    Raises:
        UserError: a session is too short to get anywhere.
    """
    plan: list[list[tuple[str, float]]] = [[]]
    room = limit
    for name, left, again, remedy in parts:
        if again >= limit:
            raise UserError(
                f"--session-hours: {name} begins with {format_hours(again)} in each session; use "
                f"longer ones, or {remedy}"
            )
        while left > 0:
            if room <= again:
                plan.append([])
                room = limit
            spent = min(left, room - again)
            plan[-1].append((name, again + spent))
            left, room = left - spent, room - again - spent
    return plan


def training_hours(session_hours: float) -> float:
    """What ``--max-hours`` gets of a session: the rest is for its start and its end.

    Raises:
        UserError: a session has no hours.
    """
    if not 0 < session_hours <= LONGEST:
        raise UserError(f"--session-hours = {session_hours:g}: must be > 0 and <= {LONGEST:g}")
    return session_hours - min(RESERVE_HOURS, session_hours / 10)


def session_lines(parts: Sequence[Part], hours: float, command: str) -> list[str]:
    """The whole time, and for each of the first sessions its command and what it trains.

    Raises:
        UserError: sessions of so many hours are too short.
    """
    plan = sessions(parts, 3600 * hours)
    whole = sum(seconds for session in plan for _, seconds in session)
    lines = [f"all phases: about {format_hours(whole)}, sessions: {len(plan)}"]
    for number, session in enumerate(plan[:SHOWN]):
        how = " --resume" if number else ""
        trained = ", ".join(f"{name} {format_hours(seconds)}" for name, seconds in session)
        lines.append(f"    {command}{how} --max-hours {hours:g}    # {trained}")
    return [*lines, "    and so on"] if len(plan) > SHOWN else lines
