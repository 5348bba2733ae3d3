"""How many network calls the compared methods take, in words."""

from nsgf.compare.tables import counted
from nsgf.compare.trials import METHODS, Trial, asked_nfe, possible_nfe, trial_config, trials
from nsgf.config.schema import Config


def calls_of_methods(config: Config) -> list[str]:
    """The numbers of calls of each method, as ``NSGF++ takes 3 calls or more``."""
    return [_calls(config, trial) for trial in _first_trials(config)]


def empty_cells(config: Config) -> list[str]:
    """A line for each method that some of ``compare.nfe`` do not suit: those cells stay empty, and
    a method that none of them suits is not trained."""
    lines = []
    for trial in _first_trials(config):
        possible = asked_nfe(trial_config(config, trial))
        empty = [str(nfe) for nfe in config.compare.nfe if nfe not in possible]
        if empty:
            end = f"no cell at NFE {', '.join(empty)}" if possible else "left out, not trained"
            lines.append(f"compare: {_calls(config, trial)}: {end}")
    return lines


def _first_trials(config: Config) -> list[Trial]:
    """A trial of each method."""
    return list({trial.method: trial for trial in trials(config)}.values())


def _calls(config: Config, trial: Trial) -> str:
    least, most = possible_nfe(trial_config(config, trial))
    end = "or more" if most is None else "and no more"
    return f"{METHODS[trial.method].title} takes {counted(least, 'call')} {end}"
