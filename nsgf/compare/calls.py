"""How many network calls the compared methods take, in words."""

from nsgf.compare.tables import counted
from nsgf.compare.trials import Comparison, asked_nfe, method_title, possible_nfe


def calls_of_methods(comparison: Comparison) -> list[str]:
    """The numbers of calls of each method, as ``NSGF++ takes 3 calls or more``."""
    return [_calls(comparison, method) for method in comparison.methods]


def empty_cells(comparison: Comparison) -> list[str]:
    """A line for each method that some of ``compare.nfe`` do not suit: those cells stay empty, and
    a method that none of them suits is not trained."""
    lines = []
    for method, config in comparison.methods.items():
        possible = asked_nfe(config)
        empty = [str(nfe) for nfe in config.compare.nfe if nfe not in possible]
        if empty:
            end = f"no cell at NFE {', '.join(empty)}" if possible else "left out, not trained"
            lines.append(f"compare: {_calls(comparison, method)}: {end}")
    return lines


def _calls(comparison: Comparison, method: str) -> str:
    least, most = possible_nfe(comparison.methods[method])
    end = "or more" if most is None else "and no more"
    return f"{method_title(method)} takes {counted(least, 'call')} {end}"
