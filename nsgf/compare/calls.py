"""How many network calls the compared methods take, in words."""

from collections.abc import Iterable

from nsgf.compare.tables import counted
from nsgf.compare.trials import METHODS, Trial, possible_nfe, trial_config, trials
from nsgf.config.schema import Config


def left_out(config: Config, todo: list[Trial]) -> list[str]:
    """A line about the methods that none of ``compare.nfe`` suits, which are not trained; none
    where each method has a trial in ``todo``."""
    has_trials = {trial.method for trial in todo}
    others = [trial for trial in trials(config) if trial.method not in has_trials]
    if not others:
        return []
    takes = "; ".join(calls_of_methods(config, others))
    return [f"compare: left out, as none of compare.nfe suits: {takes}"]


def calls_of_methods(config: Config, of: Iterable[Trial]) -> list[str]:
    """What each method of some trials takes, as ``NSGF++ takes 3 calls or more``."""
    told = []
    for method, trial in {trial.method: trial for trial in of}.items():
        least, most = possible_nfe(trial_config(config, trial))
        if most is None:
            calls = f"{counted(least, 'call')} or more"
        elif most == least:
            calls = f"{counted(least, 'call')} and no more"
        else:
            calls = f"{least} to {counted(most, 'call')}"
        told.append(f"{METHODS[method].title} takes {calls}")
    return told
