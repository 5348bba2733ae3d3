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
        "(after - x) / self.time_step",
        "(x - after) / self.time_step",
    ),
    Edit(
        "pool velocity not divided by eta",
        "pool/trajectories.py",
        "(after - x) / self.time_step",
        "after - x",
    ),
    Edit(
        "harmonic steps off by one",
        "schedule.py",
        "1 / (flow.steps - step)",
        "1 / (flow.steps - step + 1)",
    ),
    Edit(
        "clock of the harmonic schedule",
        "schedule.py",
        "1 / flow.steps if",
        "flow.eta if",
    ),
    Edit("pool time off by one", "pool/trajectories.py", "t=step / self", "t=(step + 1) / self"),
    Edit(
        "pool time not normalised", "pool/trajectories.py", "t=step / self.steps", "t=step.float()"
    ),
    Edit("pool always samples step 0", "pool/trajectories.py", "index % self.steps", "index % 1"),
    Edit(
        "pool pairs of neighbours",
        "pool/trajectories.py",
        "row = index + particle",
        "row = index",
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
    # Data
    Edit("epoch permutation repeated", "data/samplers.py", '"epoch", epoch)', '"epoch", 0)'),
    Edit(
        "sampling with replacement",
        "data/samplers.py",
        "torch.randperm(len(self._images), generator=generator)",
        "torch.randint(len(self._images), (len(self._images),), generator=generator)",
    ),
    Edit("flip upside down", "data/samplers.py", "batch.flip(-1)", "batch.flip(-2)"),
    Edit("flip always", "data/samplers.py", "< 0.5", "< 1.5"),
    Edit("images in [0, 2]", "data/images.py", "div_(half).sub_(1.0)", "div_(half)"),
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
        "line runs from target to source",
        "training/trainers.py",
        "(1 - weight) * start + weight * end",
        "weight * start + (1 - weight) * end",
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
    Edit("optimizer never steps", "training/optimization.py", "            self.adam.step()\n", ""),
    Edit(
        "gradients accumulate",
        "training/optimization.py",
        "            parameter.grad = None\n",
        "            pass\n",
    ),
    Edit("EMA never updated", "training/optimization.py", "            self._average()\n", ""),
    Edit(
        "EMA copies the weights",
        "training/optimization.py",
        "ema_decay(self.step, self.config))",
        "0.0)",
    ),
    Edit(
        "schedule never steps", "training/optimization.py", "            self.schedule.step()\n", ""
    ),
    Edit(
        "gradient never clipped",
        "training/optimization.py",
        "self.config.clip_norm or math.inf",
        "math.inf",
    ),
    Edit(
        "gradients keep their scale",
        "training/optimization.py",
        "            self.scaler.unscale_(self.adam)\n",
        "",
    ),
    Edit(
        "loss scale never adapts",
        "training/optimization.py",
        "            self.scaler.update()\n",
        "            self.scaler.update(65536.0)\n",
    ),
    Edit(
        "parts of a batch summed, not averaged",
        "training/optimization.py",
        "answer, part.target) * weight",
        "answer, part.target)",
    ),
    Edit(
        "smaller last part weighs as much",
        "training/optimization.py",
        "weight = len(part.target) / (size or len(batch.target))",
        "weight = 1 / len(parts)",
    ),
    Edit(
        "only the last part counts",
        "training/optimization.py",
        "                total += loss.detach()",
        "                total = loss.detach()",
    ),
    Edit(
        "infinite loss passes",
        "training/optimization.py",
        "torch.isfinite(loss + norm)",
        "torch.isfinite(norm)",
    ),
    Edit(
        "infinite gradient passes",
        "training/optimization.py",
        "torch.isfinite(loss + norm)",
        "torch.isfinite(loss)",
    ),
    Edit(
        "out of memory forgets a part",
        "training/optimization.py",
        "min(2 * self.accumulate, size)",
        "self.accumulate",
    ),
    Edit(
        "out of memory halves for ever",
        "training/optimization.py",
        "if self.accumulate >= size or self._world.size > 1:",
        "if False:",
    ),
    Edit(
        "dropout repeats in every update",
        "training/optimization.py",
        "self._world.rank, self.step)",
        "self._world.rank, 0)",
    ),
    Edit(
        "dropout follows no seed",
        "training/optimization.py",
        "        seed_torch(seed, self.forward.device)\n",
        "",
    ),
    Edit(
        "warm-up starts at zero",
        "training/optimization.py",
        "return (step + 1) / config.warmup_steps",
        "return step / config.warmup_steps",
    ),
    Edit(
        "average without warm-up",
        "training/optimization.py",
        "return min(config.ema_decay, (1 + step) / (10 + step))",
        "return config.ema_decay",
    ),
    Edit(
        "resume starts at step 0",
        "training/optimization.py",
        'self.step = int(state["step"])',
        "self.step = 0",
    ),
    Edit(
        "resume forgets the optimizer",
        "training/optimization.py",
        '        self.adam.load_state_dict(state["optimizer"])\n',
        "",
    ),
    Edit(
        "resume forgets the schedule",
        "training/optimization.py",
        '        self.schedule.load_state_dict(state["scheduler"])\n',
        "",
    ),
    Edit(
        "resume forgets the average",
        "training/optimization.py",
        '        self.ema.load_state_dict(state["ema"])\n',
        "",
    ),
    Edit(
        "resume forgets the loss scale",
        "training/optimization.py",
        '            self.scaler.load_state_dict(state["scaler"])\n',
        "            pass\n",
    ),
    Edit(
        "resume forgets the window",
        "training/loop.py",
        '        self.window.readings = [Reading(*pair) for pair in payload["window"]]\n',
        "",
    ),
    Edit(
        "last checkpoint not written",
        "training/loop.py",
        "return self.state.step == self.optim.iterations or",
        "return",
    ),
    Edit(
        "skipped updates enter the mean",
        "training/loop.py",
        "        if reading.is_finite:\n            self.window.add(reading)",
        "        self.window.add(reading)\n        if reading.is_finite:",
    ),
    Edit(
        "row of bad updates never ends",
        "training/loop.py",
        "            self.skipped_in_a_row = 0\n",
        "",
    ),
    Edit(
        "bad updates never stop",
        "training/loop.py",
        "if self.skipped_in_a_row >= self.config.max_skipped:",
        "if False:",
    ),
    Edit(
        "stopped without a checkpoint",
        "training/loop.py",
        "            self._save()\n            raise",
        "            raise",
    ),
    Edit(
        "anomalies watched for ever",
        "training/loop.py",
        "if step < self.config.detect_anomaly:",
        "if self.config.detect_anomaly:",
    ),
    Edit(
        "outcome read before it is logged is lost",
        "training/loop.py",
        "                    self._settle(pending)\n                    pending = None",
        "                    pending = None",
    ),
    # Precision and batches
    Edit(
        "layers stay float32",
        "training/acceleration.py",
        'enabled=self.precision != "fp32"',
        "enabled=False",
    ),
    Edit(
        "fp16 runs in bf16",
        "training/acceleration.py",
        'torch.float16 if self.precision == "fp16"',
        'torch.bfloat16 if self.precision == "fp16"',
    ),
    Edit(
        "answers stay 16 bit",
        "training/acceleration.py",
        "self._network(*inputs).float()",
        "self._network(*inputs)",
    ),
    Edit(
        "T4 gets bf16",
        "training/acceleration.py",
        "TENSOR_CORES, BFLOAT16 = (7, 0), (8, 0)",
        "TENSOR_CORES, BFLOAT16 = (7, 0), (7, 5)",
    ),
    Edit(
        "settings of the device stay",
        "training/acceleration.py",
        "        torch.use_deterministic_algorithms(deterministic)\n",
        "        pass\n",
    ),
    Edit(
        "benchmark on while deterministic",
        "training/acceleration.py",
        "config.cudnn_benchmark and not config.deterministic",
        "config.cudnn_benchmark",
    ),
    Edit(
        "batch shifted by one",
        "training/batches.py",
        "range(step * self._size, (step + 1) * self._size)",
        "range(step * self._size + 1, (step + 1) * self._size + 1)",
    ),
    Edit(
        "resume keeps what was drawn ahead",
        "training/batches.py",
        "if self._ahead and self._ahead[0][0] != step:",
        "if False:",
    ),
    Edit(
        "failed batch is skipped",
        "training/batches.py",
        "            self._drop()  # the failed batch is the next one again\n",
        "",
    ),
    Edit(
        "prefetch thread left alive",
        "training/batches.py",
        "self._thread.shutdown(wait=True, cancel_futures=True)",
        "pass",
    ),
    Edit(
        "every process draws the whole batch",
        "training/batches.py",
        "self._world.share(range(",
        "(range(",
    ),
    Edit(
        "last share forgets the rest",
        "distributed.py",
        "len(things) * rank // self.size for",
        "len(things) // self.size * rank for",
    ),
    Edit(
        "pool never samples the last pair",
        "pool/trajectories.py",
        "lots % len(self)",
        "lots % (len(self) - 1)",
    ),
    Edit(
        "pool rebuilt from one batch",
        "pool/build.py",
        "sampler.at(range(number * n, (number + 1) * n))",
        "sampler.at(range(n))",
    ),
    Edit(
        "interrupted pool started anew",
        "pool/build.py",
        "range(first, len(flows), together)",
        "range(0, len(flows), together)",
    ),
    Edit(
        "position never advances",
        "data/samplers.py",
        "        self.position = positions.stop\n",
        "",
    ),
    Edit(
        "straight velocity reversed",
        "training/trainers.py",
        "Batch((x, t), end - start)",
        "Batch((x, t), start - end)",
    ),
    Edit(
        "predictor regresses 1 - t", "training/trainers.py", "Batch((x,), t)", "Batch((x,), 1 - t)"
    ),
    Edit(
        "one time for the whole batch",
        "data/points.py",
        "torch.rand(n, generator=generator)\n\n\nclass Lots",
        "torch.rand(1, generator=generator).expand(n)\n\n\nclass Lots",
    ),
    Edit(
        "activations forgotten",
        "memory.py",
        "activations=int(MARGIN * activations)",
        "activations=0",
    ),
    Edit(
        "estimate ignores the parts",
        "memory.py",
        "self.fixed + self.activations // self.accumulate",
        "self.fixed + self.activations",
    ),
    # Sampling
    Edit("tau unused", "sampling.py", "t = tau[active] + count", "t = 0 * tau[active] + count"),
    Edit(
        "straight flow ends early",
        "sampling.py",
        "(1 - tau) / config.straight_steps",
        "(1 - tau) / (config.straight_steps + 1)",
    ),
    Edit("NFE off by one", "sampling.py", "counted.append(predictor)", "pass"),
    Edit(
        "NFE counts batches", "sampling.py", "self.evaluations += len(x)", "self.evaluations += 1"
    ),
    Edit(
        "sampling time off by one",
        "sampling.py",
        "step / steps, device",
        "(step + 1) / steps, device",
    ),
    Edit("slope not scaled to the way", "sampling.py", "return span.view(shape) * s", "return s"),
    Edit("all samples from time 0", "sampling.py", "tau + s.clamp(max=1) * span", "s * span"),
    Edit(
        "fixed tau asks the predictor", "sampling.py", "if self.sampling.tau is not None:", "if 0:"
    ),
    Edit("last step behind the end", "ode.py", '"step_t": grid[-1:]', '"step_t": 2 * grid[-1:]'),
    Edit("heun of first order", "ode.py", '"heun": "heun2"', '"heun": "euler"'),
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
        "flow_time=flow_time(flow)",
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
    Edit(
        "samples and real images swapped",
        "metrics/fidelity.py",
        'input1=ByteImages(samples, "samples"),\n        input2=ByteImages(reference.images,',
        "input1=ByteImages(reference.images),\n        input2=ByteImages(samples,",
    ),
    Edit("kept features unchecked", "metrics/fidelity.py", "if found else []", "if False else []"),
    Edit(
        "kept features of other weights",
        "metrics/fidelity.py",
        "unflipped-{fingerprint(self.images)}-{weights}-",
        "unflipped-{fingerprint(self.images)}-",
    ),
    Edit(
        "kept features of other pixels",
        "metrics/fidelity.py",
        "unflipped-{fingerprint(self.images)}-{weights}-",
        "unflipped-{weights}-",
    ),
    Edit(
        "precision and recall by VGG16",
        "metrics/fidelity.py",
        "feature_extractor=EXTRACTOR,",
        "feature_extractor=None,",
    ),
    Edit(
        "accuracy on trained images",
        "metrics/network.py",
        "for rows in held_out.split",
        "for rows in fitted.split",
    ),
    Edit(
        "trained on held-out images too",
        "metrics/network.py",
        "return order[:trained], order[trained:]",
        "return order, order[trained:]",
    ),
    Edit(
        "floor of the reference itself",
        "metrics/classifier.py",
        "images[order[size : size + MOST]]",
        "images[order[:size]]",
    ),
    Edit(
        "classifier sees other values than it was trained on",
        "metrics/network.py",
        "self.network.body(to_unit_range(part.to(device)))",
        "self.network.body(part.to(device).float())",
    ),
    Edit(
        "samples that are not finite as bytes",
        "inference.py",
        "finite = finite and bool(part.x.isfinite().all())",
        "finite = True",
    ),
    # Memory
    # Configuration, checkpoints, command line
    Edit(
        "--train-iters misses phase 3",
        "arguments.py",
        "in (*PHASES, *PEER_PHASES))",
        "in (*PHASES[:2], *PEER_PHASES))",
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
        "parser.parse_args(flags, namespace",
        "parser.parse_args([], namespace",
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
        "fixed |= key in LEARNT_FROM.get(phase, ())",
        "fixed |= False",
    ),
    Edit(
        "old checkpoint overwritten",
        "checkpoint.py",
        'f".{name}{number}.pt")).exists()',
        'f".{name}{number}.pt")).is_symlink()',
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
    # Comparison
    Edit("peer's noise of no width", "training/peers.py", "config.sigma if", "0.0 if"),
    Edit(
        "peers draw without their seed",
        "training/peers.py",
        'seed = derive_seed(self._seed, "matcher", position)',
        'seed = derive_seed(0, "matcher")',
    ),
    Edit("reflow backwards", "training/peers.py", "t), end - start)", "t), start - end)"),
    Edit(
        "reflow from random weights",
        "peers.py",
        "student.load_state_dict(teacher.state_dict())",
        "teacher.state_dict()",
    ),
    Edit(
        "more updates for NSGF++",
        "compare/cells.py",
        "round(count * total / max(1, sum(counts)))",
        "count",
    ),
    Edit(
        "the predictor's call forgotten",
        "compare/cells.py",
        "nfe -= sampling.tau is None",
        "nfe -= 0",
    ),
    Edit(
        "Heun for the price of Euler",
        "compare/cells.py",
        "2 if sampling.solver",
        "1 if sampling.solver",
    ),
    Edit(
        "behind called ahead",
        "compare/report.py",
        "(middle > 0) == _is_better_higher(metric)",
        "(middle > 0) != _is_better_higher(metric)",
    ),
    Edit(
        "draws counted as seeds",
        "compare/report.py",
        "    if len(seeds) < 2:\n",
        "    if True:\n",
    ),
    Edit("level never", "compare/report.py", "student_t.ppf(0.975,", "student_t.ppf(0.5,"),
    Edit(
        "draws taken for one",
        "compare/record.py",
        '"draw": draw,',
        '"draw": 0,',
    ),
    Edit(
        "time of a killed session guessed",
        "compare/record.py",
        "if resumed and phase not in self._seconds:",
        "if False:",
    ),
    Edit(
        "precision not compared",
        "compare/comparison.py",
        'saved["train"].get("precision"), config',
        "config.train.precision, config",
    ),
    Edit("floor of another seed", "compare/record.py", '"seed": config.seed,', '"seed": 0,'),
    Edit(
        "target drawn as the floor",
        "compare/measure.py",
        'target("floor", str(draw))',
        'target("compare", str(draw))',
    ),
    Edit(
        "energy with bias",
        "metrics/wasserstein.py",
        "_total(a, a) / (n * (n - 1))",
        "_total(a, a) / (n * n)",
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
