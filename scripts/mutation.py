"""Mutation testing: change the code a little, at random places, and see whether a test notices.

Usage: python scripts/mutation.py [--modules pool ...] [--sample 400] [--again mutation.json]

mutmut's operators propose the changes (and one of our own: a call whose result is not used is left
out). A first run of the tests under coverage says which tests execute which line; a mutant runs
those alone, nearest and fastest first, until one fails. Processes are forked from one that has
torch loaded, and work on copies of the tree. Changes that no test can notice are listed, with
reasons, in tests/equivalent_mutants.yaml. Needs: pip install -e ".[test,mutation]"
"""

import argparse
import difflib
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import coverage
import libcst as cst
import pytest
import torch
import yaml
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

MODULES = ("sinkhorn", "pool", "phases", "training", "sampling", "data", "run/checkpoint.py")
UNSEEN = ("plots.py", "pictures.py")
"""How a picture looks is for the eye."""
TEST_SECONDS = 30.0
"""Tests of a mutant end here, by the time they took unchanged: the nearest and fastest go first."""
HEAVY = ("torchvision", "matplotlib.pyplot", "sklearn.datasets", "scipy.stats", "ot")
HEAVY += ("geomloss", "hypothesis", "torchdiffeq", "torch_fidelity", "tqdm")
PYTEST = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not e2e and not slow")
UNNOTICED = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


@dataclass
class Mutant:
    """One change: ``lines`` of ``file`` (a path below the root) are those of its statement."""

    file: str
    lines: tuple[int, int]
    code: str = field(repr=False)
    diff: list[str]
    result: str = "survived"


class Proposals(cst.CSTVisitor):
    """Every change of a module that is worth trying: no annotations, decorators or prose."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        self.found: list[tuple[cst.CSTNode, cst.CSTNode, tuple[int, int]]] = []
        self._statement: tuple[int, int] | None = None

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Annotation | cst.Decorator | cst.Import | cst.ImportFrom):
            return False
        if isinstance(node, cst.SimpleString | cst.FormattedString) and " " in _text(node):
            return False
        if isinstance(node, cst.Assign) and any(w in _text(node) for w in ("__all__", "TypeVar")):
            return False
        place = self.get_metadata(PositionProvider, node, None)
        if isinstance(node, cst.SimpleStatementLine):
            self._statement = place.start.line, place.end.line
        if place is None:
            return True
        lines = self._statement or (place.start.line, place.end.line)
        for kind, operator in mutation_operators:
            if isinstance(node, kind):
                self.found += [(node, changed, lines) for changed in operator(node)]
        if isinstance(node, cst.Expr) and isinstance(node.value, cst.Call):
            self.found.append((node, cst.Expr(cst.Ellipsis()), lines))
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if isinstance(original_node, cst.SimpleStatementLine):
            self._statement = None


def _text(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)


class Source:
    """A module and what may be changed in it."""

    def __init__(self, root: Path, file: Path) -> None:
        self.name = str(file.relative_to(root))
        self._text = file.read_text()
        wrapper, proposals = MetadataWrapper(cst.parse_module(self._text)), Proposals()
        wrapper.visit(proposals)
        self._module, self.proposals = wrapper.module, proposals.found

    def mutant(self, number: int) -> Mutant:
        node, changed, lines = self.proposals[number]
        code = self._module.deep_replace(node, changed).code
        texts = self._text.splitlines(), code.splitlines()
        return Mutant(self.name, lines, code, [*difflib.unified_diff(*texts, n=0, lineterm="")][2:])


class Recorder:
    """A pytest plugin: which lines each test executes, in itself or in its shared fixtures."""

    def __init__(self, tree: Path) -> None:
        self.coverage = coverage.Coverage(None, include=[f"{tree}/nsgf/*"], config_file=False)
        self.tests: dict[str, dict] = {}
        self._context = ""

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item):
        shared = [d for defs in item._fixtureinfo.name2fixturedefs.values() for d in defs]
        contexts = [self._name(d) for d in shared if d.scope != "function"]
        self.tests[item.nodeid] = {"contexts": contexts, "seconds": 0.0, "passed": True}
        self._switch(item.nodeid)
        yield
        self._switch("")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        before = self._context
        self._switch(before if fixturedef.scope == "function" else self._name(fixturedef))
        yield
        self._switch(before)

    def pytest_runtest_logreport(self, report):
        self.tests[report.nodeid]["seconds"] += report.duration
        self.tests[report.nodeid]["passed"] &= report.passed

    @staticmethod
    def _name(fixture) -> str:
        return f"{fixture.baseid}::{fixture.argname} (fixture)"

    def _switch(self, context: str) -> None:
        self._context = context
        self.coverage.switch_context(context)


class Selection:
    """A pytest plugin: these tests alone, in this order."""

    def __init__(self, names: list[str]) -> None:
        self._order = {name: place for place, name in enumerate(names)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        items[:] = sorted(
            (item for item in items if item.nodeid in self._order),
            key=lambda item: self._order[item.nodeid],
        )


def forked(tree: Path, work, log: Path) -> int:
    """Start ``work()`` in a process of its own inside ``tree``; its answer is the exit code."""
    process = os.fork()
    if process:
        return process
    code = 70
    try:
        os.setsid()
        os.chdir(tree)
        sys.path.insert(0, str(tree))
        os.environ["PYTHONPATH"] = str(tree)
        output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = int(work())
    finally:
        os._exit(code)


def record(tree: Path, tests: list[str]) -> int:
    """Run ``tests`` unchanged, and leave what they execute in ``covered.json``."""
    recorder = Recorder(tree)
    recorder.coverage.start()
    pytest.main([*PYTEST, f"--basetemp={tree}.tmp", *tests], plugins=[recorder])
    recorder.coverage.stop()
    data = recorder.coverage.get_data()
    files = {str(Path(f).relative_to(tree)): f for f in data.measured_files()}
    lines = {name: data.contexts_by_lineno(f) for name, f in files.items()}
    (tree / "covered.json").write_text(json.dumps({"tests": recorder.tests, "lines": lines}))
    return 0


class Tests:
    """What is known of the tests: the lines they execute, and the seconds they take."""

    def __init__(self, records: list[dict]) -> None:
        self.all = {name: test for r in records for name, test in r["tests"].items()}
        self._lines: dict[str, dict[int, set[str]]] = {}
        for file, lines in ((f, lines) for r in records for f, lines in r["lines"].items()):
            mine = self._lines.setdefault(file, {})
            for line, contexts in lines.items():
                mine.setdefault(int(line), set()).update(filter(None, contexts))

    def of(self, mutant: Mutant) -> tuple[list[str], list[str]]:
        """Those that execute the mutant's statement: beside its module, and elsewhere.

        Where the statement runs at import, all tests of the module.
        """
        lines, (first, last) = self._lines.get(mutant.file, {}), mutant.lines
        found = set().union(*(lines.get(line, ()) for line in range(first, last + 1)))
        found = found or set().union(*lines.values())
        beside = str(Path(mutant.file.replace("nsgf", "tests", 1)).parent) + "/"
        near, far, seconds = [], [], 0.0
        for name in sorted(self.all, key=lambda n: (beside not in n, self.all[n]["seconds"])):
            test = self.all[name]
            if test["passed"] and (name in found or not found.isdisjoint(test["contexts"])):
                seconds += test["seconds"]
                if seconds > TEST_SECONDS and near + far:
                    break
                (near if beside in name else far).append(name)
        return near, far


class Workers:
    """Copies of the tree, each with at most one process that runs tests in it."""

    def __init__(self, root: Path, count: int) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="mutation-"))
        self.trees = [self._home / f"tree{number}" for number in range(count)]
        listed = ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard"]
        for name in subprocess.run(listed, capture_output=True, text=True).stdout.split("\0"):
            for tree in self.trees if name and (root / name).is_file() else ():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, tree / name)

    def close(self) -> None:
        shutil.rmtree(self._home)

    def record(self, folders: list[str]) -> Tests:
        """Run the tests unchanged, each worker its share of the files."""
        top = self.trees[0]
        found = {file for name in folders for file in [top / name, *(top / name).rglob("*.py")]}
        files = sorted(file for file in found if file.match("test_*.py"))
        names = [str(file.relative_to(top)) for file in files]
        started = []
        for number, tree in enumerate(self.trees):
            share = names[number :: len(self.trees)]
            started.append(forked(tree, partial(record, tree, share), Path(f"{tree}.log")))
        for process in started:
            os.waitpid(process, 0)
        return Tests([json.loads((tree / "covered.json").read_text()) for tree in self.trees])

    def run(self, queue: list[Mutant], tests: Tests) -> Iterator[Mutant]:
        """The mutants in the order in which their results come."""
        waiting, busy = list(reversed(queue)), {}
        while waiting or busy:
            for tree in [tree for tree in self.trees if tree not in busy][: len(waiting)]:
                busy[tree] = self._start(tree, waiting.pop(), tests)
            for tree, (process, mutant, ends, original) in list(busy.items()):
                ended, status = os.waitpid(process, os.WNOHANG)
                if not ended and time.monotonic() < ends:
                    continue
                if not ended:
                    os.killpg(process, signal.SIGKILL)
                    os.waitpid(process, 0)
                unnoticed = os.waitstatus_to_exitcode(status) in UNNOTICED
                mutant.result = "timeout" if not ended else "survived" if unnoticed else "noticed"
                (tree / mutant.file).write_text(original)
                del busy[tree]
                yield mutant
            time.sleep(0.02)

    @staticmethod
    def _start(tree: Path, mutant: Mutant, tests: Tests) -> tuple[int, Mutant, float, str]:
        stages = tests.of(mutant)
        original = (tree / mutant.file).read_text()
        (tree / mutant.file).write_text(mutant.code)

        def work() -> int:
            """Import the tests of other modules only if those beside this one notice nothing."""
            for names in filter(None, stages):
                files = dict.fromkeys(name.split("::")[0] for name in names)
                arguments = [*PYTEST, "-x", f"--basetemp={tree}.tmp", *files]
                code = pytest.main(arguments, plugins=[Selection(names)])
                if code not in UNNOTICED:
                    return code
            return 0

        limit = 60 + 5 * sum(tests.all[name]["seconds"] for names in stages for name in names)
        process = forked(tree, work, Path(f"{tree}.log"))
        return process, mutant, time.monotonic() + limit, original


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
    if wanted:
        named = {file for file, _ in wanted}
        sources = [source for source in sources if source.name in named]
    every = [(source, n) for source in sources for n in range(len(source.proposals))]
    print(f"{len(every)} possible changes of {len(sources)} files", flush=True)
    if not wanted:
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
        Path(f"{options.out}.json").write_text(json.dumps([asdict(m) for m in done], indent=1))
        print(report(done))


if __name__ == "__main__":
    main()
