"""Which tests execute which line, and running them on the changes of scripts/mutation.py."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import coverage
import pytest
from mutation_proposals import Mutant

TEST_SECONDS = 30.0
"""Tests of a mutant end here, by the time they took unchanged: the nearest and fastest go first."""
PYTEST = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not e2e and not slow")
UNNOTICED = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


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
                mine.setdefault(int(line), set()).update(contexts)

    def of(self, mutant: Mutant) -> tuple[list[str], list[str]]:
        """Those that execute the mutant's statement: beside its module, and elsewhere.

        Where the statement runs at import, outside of all tests: those of the whole module, and all
        beside it, which may look at what it leaves without executing a line.
        """
        lines, (first, last) = self._lines.get(mutant.file, {}), mutant.lines
        found = set().union(*(lines.get(line, ()) for line in range(first, last + 1)))
        beside = str(Path(mutant.file.replace("nsgf", "tests", 1)).parent) + "/"
        if not found or "" in found:
            found = set().union(*lines.values(), (name for name in self.all if beside in name))
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
