"""How network calls are divided among the legs of a sampler."""

from collections.abc import Sequence
from dataclasses import replace

from nsgf.config.schema import Config, SamplingConfig
from nsgf.sampling.sampler import EntryTimes, Leg, NSGFSteps, OneCall, StraightFlow
from nsgf.sampling.solvers import expected_calls, steps_within


def least_calls(sampling: SamplingConfig, legs: Sequence[type[Leg]]) -> int:
    """Return the smallest number of network calls for a sample: one for each leg, and for a
    straight flow those of one step of its solver (dopri5 counts as one)."""
    step = expected_calls(replace(sampling, straight_steps=1, omega=None), 0.0) or 1
    return sum(step if leg is StraightFlow else 1 for leg in legs)


def most_calls(legs: Sequence[type[Leg]]) -> int | None:
    """Return the largest number of network calls that these legs can use; None: no limit."""
    return None if {NSGFSteps, StraightFlow} & set(legs) else len(legs)


def at_calls(config: Config, legs: Sequence[type[Leg]], calls: int) -> Config:
    """Return the settings of sampling with this number of network calls, or the nearest below it.

    NSGF++ spends one on the predictor, at most T and at most half of the others on the NSGF steps,
    and what is left on the straight flow, whose Heun steps take two. dopri5 takes what it needs.

    Args:
        config: of a run.
        legs: those whose networks a sample meets.
        calls: at least :func:`least_calls`.
    """
    if OneCall in legs:
        return config
    sampling = replace(config.sampling, omega=None)
    if StraightFlow not in legs:
        return replace(config, sampling=replace(sampling, nsgf_steps=calls))
    calls -= list(legs).count(EntryTimes)
    if NSGFSteps in legs:
        steps = max(1, min(config.flow.steps, calls // 2))
        sampling, calls = replace(sampling, nsgf_steps=steps), calls - steps
    straight_steps = steps_within(sampling, calls)
    return replace(config, sampling=replace(sampling, straight_steps=straight_steps))
