"""Does the test suite notice wrong code? Applies one deliberate wrong edit at a time and runs it.

    python scripts/mutation_probe.py [--jobs 2] [--only EXPRESSION]

Each edit is made in a copy of the repository, never here. The tests beside the edited file run
first, then, if they stay green, the whole unit suite. Prints a table; exit code 1 if an edit
survives or no longer applies.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Edit(NamedTuple):
    name: str
    file: str
    before: str
    after: str


EDITS = [
    # Sinkhorn velocity and flow
    Edit(
        "geomloss velocity reversed", "sinkhorn/autograd.py", "return -gradient", "return gradient"
    ),
    Edit("geomloss without self term", "sinkhorn/autograd.py", "debias=True", "debias=False"),
    Edit(
        "blur scaled in geomloss",
        "sinkhorn/autograd.py",
        "blur=self._blur,",
        "blur=self._blur * 2**0.5,",
    ),
    Edit(
        "closed form without self term",
        "sinkhorn/closed_form.py",
        "return plan_xy @ y - plan_xx @ x",
        "return plan_xy @ y - x",
    ),
    Edit(
        "blur used as eps",
        "sinkhorn/closed_form.py",
        "return [*schedule, blur**2]",
        "return [*schedule, blur]",
    ),
    Edit(
        "soft maximum",
        "sinkhorn/closed_form.py",
        "return -eps * torch.logsumexp",
        "return eps * torch.logsumexp",
    ),
    Edit("cost without 1/2", "sinkhorn/clouds.py", "beta=0.5, alpha=-1)", "beta=1.0, alpha=-2)"),
    Edit(
        "half precision not raised",
        "sinkhorn/clouds.py",
        "x.flatten(2).float(), y",
        "x.flatten(2), y",
    ),
    Edit("diameter zero not caught", "sinkhorn/one_by_one.py", "== 0.0:", "< 0.0:"),
    Edit(
        "eta forgotten, one by one",
        "sinkhorn/one_by_one.py",
        "path[:, t] + eta * self",
        "path[:, t] + self",
    ),
    Edit(
        "flow steps not chained",
        "sinkhorn/one_by_one.py",
        "= path[:, t] + eta",
        "= path[:, 0] + eta",
    ),
    Edit(
        "assignment reversed",
        "sinkhorn/assignment.py",
        "device=y.device)] - x",
        "device=y.device)] + x",
    ),
    Edit(
        "assignment ignores sigma",
        "sinkhorn/assignment.py",
        "y[torch.as_tensor(sigma, device=y.device)]",
        "y",
    ),
    Edit(
        "blur used as eps, batched",
        "sinkhorn/batched.py",
        "config.blur, config.blur**2",
        "config.blur, config.blur",
    ),
    Edit(
        "batched velocity reversed",
        "sinkhorn/batched.py",
        "torch.baddbmm(own, plan, y, beta=-1)",
        "torch.baddbmm(own, plan, y, alpha=-1)",
    ),
    Edit("batched without self term", "sinkhorn/batched.py", "return plan @ x,", "return x,"),
    Edit(
        "eta forgotten, batched",
        "sinkhorn/batched.py",
        "x.add_(solution.velocity, alpha=eta)",
        "x.add_(solution.velocity)",
    ),
    Edit(
        "warm start of the wrong sign",
        "sinkhorn/batched.py",
        "solution.g.mul_(1 - eta)",
        "solution.g.mul_(eta - 1)",
    ),
    Edit(
        "tolerance without speed",
        "sinkhorn/batched.py",
        "(speed / self._blur).clamp(FINEST, 1.0)",
        "torch.ones_like(speed)",
    ),
    Edit("unconverged not counted", "sinkhorn/clouds.py", "(~converged).sum()", "converged.sum()"),
    Edit("hidden columns left alone", "sinkhorn/batched.py", "if bool(hidden.any()):", "if False:"),
    Edit(
        "origin forgotten",
        "sinkhorn/batched.py",
        "torch.add(x, origin,",
        "torch.add(x, 0 * origin,",
    ),
    # Pool
    Edit(
        "pool velocity reversed",
        "pool/trajectories.py",
        "(after - x) / self.eta",
        "(x - after) / self.eta",
    ),
    Edit(
        "pool velocity not divided by eta",
        "pool/trajectories.py",
        "(after - x) / self.eta",
        "after - x",
    ),
    Edit("pool time off by one", "pool/trajectories.py", "t=step / self", "t=(step + 1) / self"),
    Edit(
        "pool time not normalised", "pool/trajectories.py", "t=step / self.steps", "t=step.float()"
    ),
    Edit(
        "pool never samples the last step",
        "pool/trajectories.py",
        "randint(len(self),",
        "randint(len(self) - 1,",
    ),
    Edit("pool always samples step 0", "pool/trajectories.py", "index % self.steps", "index % 1"),
    Edit(
        "pool pairs of neighbours",
        "pool/trajectories.py",
        "particle * (self.steps + 1)",
        "particle * self.steps",
    ),
    Edit(
        "pool difference in half precision",
        "pool/trajectories.py",
        "row).float(), rows.index_select(0, row + 1).float()",
        "row), rows.index_select(0, row + 1)",
    ),
    Edit(
        "pool overwrites its first flows",
        "pool/trajectories.py",
        "self._filled = end",
        "self._filled = len(positions)",
    ),
    Edit(
        "pool not checked for finite",
        "pool/trajectories.py",
        "if not place.isfinite().all()",
        "if False",
    ),
    Edit("pool rebuilt from one batch", "pool/build.py", "position = number * n", "position = 0"),
    Edit("interrupted pool started anew", "pool/build.py", "range(first, total", "range(0, total"),
    Edit(
        "missing convergence not shown",
        "pool/build.py",
        'if not report.get("unc',
        'if report.get("unc',
    ),
    Edit("reports of sessions not added", "pool/build.py", '+ before["unconverged"]', ""),
    Edit(
        "pool size halved", "pool/budget.py", "math.prod(shape) * itemsize", "math.prod(shape) * 2"
    ),
    Edit(
        "type of a known pool forgotten", "pool/budget.py", 'known["settings"] == settings', "False"
    ),
    Edit(
        "pool checksums not compared", "pool/files.py", "!= self.header", "== -1 or not self.header"
    ),
    Edit("pool size not compared", "pool/files.py", "elif self._size() != nbytes", "elif False"),
    Edit(
        "pool settings not compared", "pool/files.py", 'if known["checksums"] and found', "if False"
    ),
    Edit(
        "pool header not saved at the end",
        "pool/build.py",
        "            file.save()",
        "            pass",
    ),
    Edit(
        "pool header without checksums",
        "pool/files.py",
        "range(self.finished, finished)",
        "range(0)",
    ),
    Edit(
        "prefetch leaves the stream behind", "pool/prefetch.py", "set_state(state)", "get_state()"
    ),
    Edit(
        "prefetch not rewound",
        "pool/prefetch.py",
        "self._generator.get_state()).r",
        "self._ahead.get_state()).r",
    ),
    Edit("prefetch thread left alive", "pool/prefetch.py", "self._worker.shutdown(", "dict("),
    Edit(
        "resume keeps what was drawn ahead",
        "training/trainers.py",
        "self._prefetch.rewind()",
        "pass",
    ),
    # Data
    Edit("epoch permutation repeated", "data/samplers.py", '"epoch", epoch)', '"epoch", 0)'),
    Edit(
        "sampling with replacement",
        "data/samplers.py",
        "torch.randperm(len(self._images), generator=generator)",
        "torch.randint(len(self._images), (len(self._images),), generator=generator)",
    ),
    Edit(
        "position never advances",
        "data/samplers.py",
        "        self.position += n\n        return torch.cat(parts)",
        "        return torch.cat(parts)",
    ),
    Edit("flip upside down", "data/samplers.py", "batch.flip(-1)", "batch.flip(-2)"),
    Edit("flip always", "data/samplers.py", "< 0.5", "< 1.5"),
    Edit("images in [0, 2]", "data/images.py", "div_(127.5).sub_(1.0)", "div_(127.5)"),
    Edit("wrong radius of the circle", "data/points.py", "5.0 * torch.stack", "4.0 * torch.stack"),
    Edit(
        "all streams of the target are one",
        "data/__init__.py",
        'derive_seed(self._seed, "target", *stream)',
        'derive_seed(self._seed, "target")',
    ),
    # Networks
    Edit(
        "skip connection zeroed",
        "models/unet.py",
        "embedding, h, skips.pop())",
        "embedding, h, 0 * skips.pop())",
    ),
    Edit(
        "skips joined first first",
        "models/unet.py",
        "embedding, h, skips.pop())",
        "embedding, h, skips.pop(0 if skips[0].shape == skips[-1].shape else -1))",
    ),
    Edit(
        "time ignored by the UNet",
        "models/unet.py",
        "embedding = self.embed(features",
        "embedding = self.embed(0 * features",
    ),
    Edit(
        "time ignored by the MLP",
        "models/mlp.py",
        "torch.cat([x, features",
        "torch.cat([x, 0 * features",
    ),
    Edit(
        "time of the first sample for all",
        "models/embedding.py",
        "t.float().unsqueeze(1) * frequency",
        "t[:1].expand_as(t).float().unsqueeze(1) * frequency",
    ),
    Edit(
        "residual branch lost",
        "models/unet.py",
        "return self.shortcut(x) + self.second(h)",
        "return self.shortcut(x) + 0 * self.second(h)",
    ),
    Edit(
        "attention with its pixels shifted",
        "models/unet.py",
        "q, k, v = qkv.permute(2, 0, 3, 1, 4)",
        "q, k, v = qkv.roll(1, 1).permute(2, 0, 3, 1, 4)",
    ),
    Edit(
        "output not zero at the start",
        "models/unet.py",
        "zero_init(nn.Conv2d(config.channels, image_channels, 3, padding=1))",
        "nn.Conv2d(config.channels, image_channels, 3, padding=1)",
    ),
    Edit(
        "predictor without sigmoid",
        "models/time_predictor.py",
        ".squeeze(1).sigmoid()",
        ".squeeze(1)",
    ),
    Edit(
        "max pool instead of average",
        "models/time_predictor.py",
        "nn.AvgPool2d(2)",
        "nn.MaxPool2d(2)",
    ),
    Edit(
        "scale without its one",
        "models/unet.py",
        "self.norm(h), 1 + scale)",
        "self.norm(h), scale)",
    ),
    Edit("shift lost", "models/unet.py", "addcmul(shift,", "addcmul(0 * shift,"),
    # Losses
    Edit(
        "straight velocity reversed",
        "training/trainers.py",
        "self.model(x, t), end - start)",
        "self.model(x, t), start - end)",
    ),
    Edit(
        "line runs from target to source",
        "training/trainers.py",
        "(1 - weight) * start + weight * end",
        "weight * start + (1 - weight) * end",
    ),
    Edit(
        "predictor regresses 1 - t",
        "training/trainers.py",
        "mse_loss(self.model(x), t)",
        "mse_loss(self.model(x), 1 - t)",
    ),
    Edit(
        "one time for the whole batch",
        "training/trainers.py",
        "torch.rand(n, generator=self.generator)",
        "torch.rand(1, generator=self.generator).expand(n)",
    ),
    Edit(
        "coupling computed but not used",
        "training/trainers.py",
        "end = end[optimal_pairs(start, end)]",
        "optimal_pairs(start, end)",
    ),
    Edit(
        "coupling pairs the columns",
        "training/trainers.py",
        "plan.argmax(axis=1)",
        "plan.argmax(axis=0)",
    ),
    # Step loop
    Edit("optimizer never steps", "training/loop.py", "        self.adam.step()\n", ""),
    Edit(
        "gradients accumulate",
        "training/loop.py",
        "        self.adam.zero_grad(set_to_none=True)\n",
        "",
    ),
    Edit(
        "EMA never updated",
        "training/loop.py",
        "        self.ema.update_parameters(self.trainer.model)\n",
        "",
    ),
    Edit("schedule never steps", "training/loop.py", "        self.schedule.step()\n", ""),
    Edit(
        "gradient never clipped",
        "training/loop.py",
        "self.config.clip_norm or math.inf",
        "math.inf",
    ),
    Edit(
        "warm-up starts at zero",
        "training/loop.py",
        "return (step + 1) / config.warmup_steps",
        "return step / config.warmup_steps",
    ),
    Edit(
        "resume starts at step 0",
        "training/loop.py",
        'self.step = int(state["step"])',
        "self.step = 0",
    ),
    Edit(
        "resume forgets the optimizer",
        "training/loop.py",
        '        self.adam.load_state_dict(state["optimizer"])\n',
        "",
    ),
    Edit(
        "resume forgets the random streams",
        "training/loop.py",
        '        self.trainer.set_random_state(state["random"])\n',
        "",
    ),
    Edit(
        "resume forgets the average",
        "training/loop.py",
        '        self.ema.module.load_state_dict(state["ema"])\n',
        "",
    ),
    Edit(
        "resume forgets dropout's stream",
        "training/loop.py",
        '        _set_global_random_state(state["torch_random"])\n',
        "",
    ),
    Edit(
        "last checkpoint not written",
        "training/loop.py",
        "saves = last or state.step",
        "saves = state.step",
    ),
    Edit(
        "average without warm-up",
        "training/loop.py",
        "return min(config.ema_decay, (1 + step) / (10 + step))",
        "return config.ema_decay",
    ),
    Edit(
        "non-finite gradients pass",
        "training/loop.py",
        "math.isfinite(loss) and math.isfinite(norm)",
        "math.isfinite(loss)",
    ),
    # Sampling
    Edit("tau unused", "sampling.py", "t = tau[active] + count", "t = 0 * tau[active] + count"),
    Edit(
        "straight flow ends early",
        "sampling.py",
        "(1 - tau) / config.straight_steps",
        "(1 - tau) / (config.straight_steps + 1)",
    ),
    Edit(
        "NFE off by one", "sampling.py", "counted += [predictor, straight]", "counted += [straight]"
    ),
    Edit(
        "NFE counts batches", "sampling.py", "self.evaluations += len(x)", "self.evaluations += 1"
    ),
    Edit(
        "sampling time off by one",
        "sampling.py",
        "step / steps, device",
        "(step + 1) / steps, device",
    ),
    Edit("sampling ignores eta", "sampling.py", "eta = flow_time / steps", "eta = 1 / steps"),
    Edit(
        "last weights instead of EMA",
        "handover.py",
        '"ema" if weights == "ema" else "model"',
        '"model"',
    ),
    Edit(
        "weights setting ignored",
        "inference.py",
        "weights = config.sampling.weights",
        'weights = "last"',
    ),
    Edit(
        "transport over the wrong time",
        "experiment.py",
        "flow_time=flow.steps * flow.eta",
        "flow_time=flow.steps",
    ),
    # Metrics
    Edit(
        "W2 to the source",
        "inference.py",
        'target = data.target("evaluate", str(repeat))',
        'target = data.source("evaluate", str(repeat))',
    ),
    Edit("W2 without the root", "metrics/wasserstein.py", "** 0.5", "** 1.0"),
    Edit(
        "W2 of unsquared distances", "metrics/wasserstein.py", ".square()\n    value", "\n    value"
    ),
    Edit(
        "floor compares a draw with itself",
        "metrics/wasserstein.py",
        "return w2(target.sample(n), target.sample(n))",
        "return w2(*[target.sample(n)] * 2)",
    ),
    # Memory
    Edit("activations forgotten", "memory.py", "+ MARGIN * activations", "+ 0 * activations"),
    # Configuration, checkpoints, command line
    Edit(
        "--train-iters misses phase 3",
        "arguments.py",
        '("nsgf.iterations", "nsf.iterations", "predictor.iterations")',
        '("nsgf.iterations", "nsf.iterations")',
    ),
    Edit(
        "--sinkhorn-batch shrinks the pool",
        "arguments.py",
        "batches = -(-total // n)",
        "batches = base.pool.num_batches",
    ),
    Edit(
        "YAML wins over flags",
        "arguments.py",
        "parsed = parser.parse_args(flags)",
        "parsed = parser.parse_args([])",
    ),
    Edit(
        "architecture not compared", "validation.py", '"flow", "pool", "model")', '"flow", "pool")'
    ),
    Edit(
        "ranges not checked",
        "validation.py",
        "problems = [*_range_problems(config), ",
        "problems = [",
    ),
    Edit(
        "checkpoint written in place",
        "checkpoint.py",
        'file.name + ".partial")\n    try',
        "file.name)\n    try",
    ),
    Edit(
        "phases 2 and 3 on other lines",
        "validation.py",
        'fixed |= phase != "nsgf" and key in LINES',
        "fixed |= False",
    ),
    Edit(
        "old checkpoint overwritten",
        "checkpoint.py",
        ".exists():\n            number += 1",
        ".is_symlink():\n            number += 1",
    ),
    Edit(
        "checkpoint unpickles anything", "checkpoint.py", "weights_only=True", "weights_only=False"
    ),
    Edit(
        "finished phase trained again",
        "handover.py",
        'done = int(payload["step"]) >= getattr(config, phase).iterations',
        "done = False",
    ),
]


def probe(edit: Edit) -> tuple[str, float]:
    """Outcome of one edit: the first test that noticed it, 'SURVIVED', or 'does not apply'."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "repository"
        _copy_repository(copy)
        file = copy / "nsgf" / edit.file
        text = file.read_text()
        if edit.before not in text or edit.before == edit.after:
            return "does not apply", 0.0
        file.write_text(text.replace(edit.before, edit.after, 1))
        beside = _tests_beside(copy, edit.file)
        for tests in ([str(beside)] if beside.exists() else [], ["tests"]):
            if tests:
                verdict = _failing_test(copy, tests)
                if verdict:
                    return verdict, time.perf_counter() - started
    return "SURVIVED", time.perf_counter() - started


def _copy_repository(copy: Path) -> None:
    copy.mkdir()
    for part in ("nsgf", "configs", "tests", "scripts"):
        shutil.copytree(ROOT / part, copy / part)
    for file in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / file, copy / file)


def _tests_beside(copy: Path, file: str) -> Path:
    path = Path(file)
    if path.name == "__init__.py":
        return copy / "tests" / path.parent
    beside = copy / "tests" / path.parent / f"test_{path.name}"
    # parts of a package with common tests, as the Sinkhorn solvers
    return beside if beside.exists() or path.parent == Path() else beside.parent


def _failing_test(copy: Path, tests: list[str]) -> str | None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-m",
        "not e2e",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [*command, *tests],
        cwd=copy,
        env={**_environment(), "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    failed = [line.split(" - ")[0] for line in lines if line.startswith(("FAILED", "ERROR"))]
    if done.returncode == 0:
        return None
    if done.returncode != 1 or not failed:  # pytest itself failed: that proves nothing
        raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return failed[0].split("::")[-1]


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2, help="edits tried at the same time")
    parser.add_argument("--only", default="", help="edits whose name matches this expression")
    options = parser.parse_args()
    chosen = [edit for edit in EDITS if re.search(options.only, edit.name)]
    with tempfile.TemporaryDirectory() as folder:
        _copy_repository(Path(folder) / "repository")
        failing = _failing_test(Path(folder) / "repository", ["tests"])
    if failing:
        raise SystemExit(f"the unedited code already fails {failing}: mend that first")
    missed = 0
    print("| edit | file | noticed by | seconds |\n|---|---|---|---|", flush=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        for edit, (verdict, seconds) in zip(chosen, pool.map(probe, chosen), strict=True):
            missed += verdict in ("SURVIVED", "does not apply")
            print(f"| {edit.name} | {edit.file} | {verdict} | {seconds:.0f} |", flush=True)
    print(f"\n{len(chosen) - missed} of {len(chosen)} wrong edits noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
