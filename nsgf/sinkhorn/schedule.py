"""The step sizes of the flow, and the clock that its velocity network reads.

The Sinkhorn gradient flow reaches its target only after infinite time: at each moment what is left
of the way shrinks in proportion to itself. With constant steps eta the flow stops at time T eta.
Harmonic steps 1/T, 1/(T-1), ..., 1 walk the same curve by another clock, s = 1 - exp(-time), on
which it ends at s = 1: each step covers an equal part of the way. In the limit of exact transport
particles then move at constant speed along straight lines (displacement interpolation, McCann
1997), and the last step arrives.

The velocity network learns dX/ds on the clock s, of which each step takes ``time_step``.
"""

from nsgf.config.schema import FlowConfig


def step_sizes(flow: FlowConfig) -> list[float]:
    """Return eta_0 .. eta_{T-1} of X^{t+1} = X^t + eta_t v(X^t)."""
    if flow.schedule == "harmonic":
        return [1 / (flow.steps - step) for step in range(flow.steps)]
    return [flow.eta] * flow.steps


def time_step(flow: FlowConfig) -> float:
    """Return the length of each step on the network's clock."""
    return 1 / flow.steps if flow.schedule == "harmonic" else flow.eta


def flow_time(flow: FlowConfig) -> float:
    """Return the length of the whole flow on the network's clock: 1, or T eta."""
    return 1.0 if flow.schedule == "harmonic" else flow.steps * flow.eta
