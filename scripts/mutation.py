"""Mutation testing: change the code a little, at random places, and see whether a test notices.

Usage: python scripts/mutation.py [--modules pool ...] [--sample 400] [--again mutation.json]

mutmut's operators propose the changes (and one of our own: a call whose result is not used is left
out). A first run of the tests under coverage says which tests execute which line; a mutant runs
those alone, nearest and fastest first, until one fails. Processes are forked from one that has
torch loaded, and work on copies of the tree. Changes that no test can notice are listed, with
reasons, in tests/equivalent_mutants.yaml. Needs: pip install -e ".[test,mutation]"
"""

import argparse
import importlib
import json
import os
import random
import sys
from dataclasses import asdict
from pathlib import Path

import torch
import yaml
from mutation_proposals import Mutant, Source
from mutation_workers import Workers

MODULES = ("sinkhorn", "pool", "phases", "training", "sampling", "data", "run/checkpoint.py")
UNSEEN = ("plots.py", "pictures.py")
"""How a picture looks is for the eye."""
HEAVY = ("torchvision", "matplotlib.pyplot", "sklearn.datasets", "scipy.stats", "ot")
HEAVY += ("geomloss", "hypothesis", "torchdiffeq", "torch_fidelity", "tqdm")


def equivalent(root: Path) -> set[tuple[str, str]]:
    """Listed changes that no test can notice, as (file, lines of the difference)."""
    file = root / "tests" / "equivalent_mutants.yaml"
    listed = yaml.safe_load(file.read_text()) if file.exists() else []
    return {(entry["file"], _key(entry["change"].splitlines())) for entry in listed}


def _key(diff: list[str]) -> str:
    return "\n".join(f"{line[0]} {line[1:].strip()}" for line in diff if line[:1] in ("-", "+"))


def report(done: list[Mutant]) -> str:
    """A table of the modules, then what survived."""
    text = "| module | mutants | noticed | survived | share |\n| --- | --- | --- | --- | --- |\n"
    counted = [m for m in done if m.result != "equivalent"]
    groups = {"/".join(m.file.split("/")[:2]): [] for m in sorted(counted, key=lambda m: m.file)}
    for mutant in counted:
        groups["/".join(mutant.file.split("/")[:2])].append(mutant)
    for name, group in [*groups.items(), ("all", counted)]:
        noticed = sum(mutant.result != "survived" for mutant in group)
        share = f"{100 * noticed / max(1, len(group)):.1f} %"
        text += f"| {name} | {len(group)} | {noticed} | {len(group) - noticed} | {share} |\n"
    text += f"\n{len(done) - len(counted)} more are listed as equivalent.\n"
    survived = [described(mutant) for mutant in counted if mutant.result == "survived"]
    return text + "".join(f"\n```diff\n{change}\n```\n" for change in survived)


def described(mutant: Mutant) -> str:
    """Where it is; the change too where no test noticed it."""
    change = mutant.diff if mutant.result == "survived" else []
    return "\n".join([f"{mutant.result} {mutant.file}:{mutant.lines[0]}", *change])


def chosen(options: argparse.Namespace, root: Path) -> list[Mutant]:
    """A sample of all changes; or those that survived in an earlier report, all of them."""
    kept = json.loads(Path(options.again).read_text()) if options.again else []
    wanted = {(m["file"], _key(m["diff"])) for m in kept if m["result"] == "survived"}
    places = [place for name in options.modules for place in sorted((root / "nsgf").glob(name))]
    files = [f for place in places for f in ([place] if place.is_file() else place.rglob("*.py"))]
    sources = [Source(root, file) for file in sorted(files) if file.name not in UNSEEN]
    every = [(source, n) for source in sources for n in range(len(source.proposals))]
    print(f"{len(every)} possible changes of {len(sources)} files", flush=True)
    if wanted:  # making one takes long enough to ask first whether it can be among them
        removed = {(file, line[2:]) for file, key in wanted for line in key.splitlines()[:1]}
        every = [(source, n) for source, n in every if removed & source.lines_of(n)]
    else:
        every = random.Random(options.seed).sample(every, min(options.sample, len(every)))
    made = (source.mutant(number) for source, number in every)
    return [m for m in made if not wanted or (m.file, _key(m.diff)) in wanted]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modules", nargs="+", default=MODULES, help="folders or files of nsgf/")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="folders of tests")
    parser.add_argument("--sample", type=int, default=400, help="how many mutants")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", default="mutation", help="writes OUT.md and OUT.json")
    parser.add_argument("--again", help="only what survived in this earlier OUT.json")
    parser.add_argument("--root", default=Path(__file__).parents[1], help="another checkout")
    options = parser.parse_args()
    root = Path(options.root).resolve()
    queue, known = chosen(options, root), equivalent(root)
    for name in HEAVY:  # before forking: every process has them at once
        importlib.import_module(name)
    torch.set_num_threads(1)
    workers, done = Workers(root, options.jobs), []
    try:
        tests = workers.record(options.tests)
        if not tests.all:
            raise SystemExit(f"no tests ran: {Path(f'{workers.trees[0]}.log').read_text()[-2000:]}")
        failed = [name for name, test in tests.all.items() if not test["passed"]]
        print(f"{len(tests.all)} tests, not used as they fail: {failed}", flush=True)
        sys.dont_write_bytecode = True  # two changes within a second look alike to its cache
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        for mutant in workers.run(queue, tests):
            if mutant.result == "survived" and (mutant.file, _key(mutant.diff)) in known:
                mutant.result = "equivalent"
            done.append(mutant)
            print(f"{len(done)}/{len(queue)}", described(mutant), flush=True)
    finally:
        workers.close()
        Path(f"{options.out}.md").write_text(report(done))
        kept = [{**asdict(mutant), "code": ""} for mutant in done]
        Path(f"{options.out}.json").write_text(json.dumps(kept, indent=1))
        print(report(done))


if __name__ == "__main__":
    main()
