"""The phases, and the methods that are made of them (:mod:`nsgf.phases.ways`)."""

from nsgf.phases.base import Phase
from nsgf.phases.ways import (
    WAYS,
    Way,
    find_preview,
    find_way,
    find_ways,
    get_phase,
    get_phases,
    load_sampler,
)

__all__ = [
    "WAYS",
    "Phase",
    "Way",
    "find_preview",
    "find_way",
    "find_ways",
    "get_phase",
    "get_phases",
    "load_sampler",
]
