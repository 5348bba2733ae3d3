"""The typed configuration: each field is documented here and becomes a command-line flag.

The docstring below a field is its help text; its annotation gives the allowed range and whether it
may change on resume. :mod:`nsgf.checks` checks what depends on several fields.
"""

from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from nsgf.config.leaves import FREE_ON_RESUME, MACHINE_PATH, Range

PhaseName = Literal["nsgf", "nsf", "predictor", "peer", "reflow", "generator"]
PHASES: tuple[PhaseName, ...] = ("nsgf", "nsf", "predictor")
"""NSGF++."""
PEER_PHASES: tuple[PhaseName, ...] = ("peer", "reflow")
"""Flow matching, which NSGF++ is compared with."""
ONE_CALL: tuple[PhaseName, ...] = ("nsgf", "generator")
"""From noise to data with one network call; nsgf only if the generator starts with its weights."""
FAMILIES: tuple[tuple[PhaseName, ...], ...] = (PHASES, PEER_PHASES, ONE_CALL)
"""Phases that one experiment may train, in their order, which numbers their files."""


def family(phase: PhaseName) -> tuple[PhaseName, ...]:
    """Return the first family of phases that holds this one, in the order of training."""
    return next(names for names in FAMILIES if phase in names)


PointName = Literal["8gaussians", "moons", "scurve", "checkerboard"]
ImageName = Literal["digits", "mnist", "cifar10"]
OwnName = Literal["images", "points"]
SourceName = Literal["gaussian", "8gaussians"]
SolverName = Literal["euler", "heun", "dopri5"]


@dataclass
class DataConfig:
    """Source mu0 and target mu*."""

    name: Literal[PointName, ImageName, OwnName] = "8gaussians"
    """Target mu*: a 2D set, an image set, or the images or points at data.path."""
    source: SourceName = "gaussian"
    """Source mu0: standard Gaussian, or 8gaussians for 2D targets."""
    root: Annotated[str, MACHINE_PATH, FREE_ON_RESUME] = "data"
    """Folder of the image sets, in torchvision's layout."""
    download: Annotated[bool, FREE_ON_RESUME] = True
    """Download an image set that is not in data.root."""
    fake: bool = False
    """Replace an image set by random images of the same shape."""
    flip: bool = False
    """Mirror training images left to right with probability 1/2."""
    conditional: bool = False
    """Give networks the class of each sample: images with labels, or own images in subfolders."""
    path: Annotated[str | None, MACHINE_PATH, FREE_ON_RESUME] = None
    """images: a folder, or a file .npz with images (N, C, H, W) and perhaps labels (N,); points: a
    file .npz, .npy or .csv."""
    size: Annotated[int | None, Range(4, 1024)] = None
    """images: pixels of a side, to which the middle square of each image is scaled; null: 32, or as
    they are in a file."""
    skip_broken: bool = False
    """images: leave out files of a folder that cannot be read."""
    columns: str | None = None
    """points: columns to use, A,B,C, by name or by number from 1 on; null: all."""
    key: str | None = None
    """points: name of the array in a file .npz that has several."""
    found: dict[str, Any] = field(default_factory=dict)
    """Written by the program: what a new run finds at data.path, and a resumed run must find."""


@dataclass
class SinkhornConfig:
    """Entropic optimal transport on one mini-batch, cost 1/2 |x - y|^2, eps = blur^2."""

    solver: Literal["batched", "geomloss"] = "batched"
    """batched: many flows at once, to a tolerance; geomloss: the library, one flow at a time."""
    batch_size: Annotated[int, Range(1)] = 256
    """Particles n of one flow."""
    target_batch: Annotated[int | None, Range(1)] = None
    """Targets m of one flow; null: as many as particles."""
    blur: Annotated[float, Range(above=0, maximum=1e6)] = 0.5
    """Square root of the regularization eps, in units of the data."""
    scaling: Annotated[float, Range(above=0, below=1)] = 0.8
    """geomloss: ratio of successive blurs of the annealing; closer to 1: slower, more exact."""
    tolerance: Annotated[float, Range(above=0)] = 5e-4
    """batched: largest L1 error of a plan's marginals, whose mass is 1. It shrinks in proportion
    where particles move by less than the blur."""

    @property
    def targets(self) -> int:
        """Targets m of one flow."""
        return self.target_batch or self.batch_size


@dataclass
class FlowConfig:
    """The discretized Sinkhorn gradient flow (Algorithm 1)."""

    steps: Annotated[int, Range(1)] = 5
    """Steps T of the flow, and of sampling with the velocity network."""
    eta: Annotated[float, Range(1e-6)] = 0.2
    """Step size eta of the constant schedule: X^{t+1} = X^t + eta v."""
    schedule: Literal["constant", "harmonic"] = "constant"
    """constant: eta in every step; harmonic: 1/T, 1/(T-1), ..., 1, equal parts of the way."""


@dataclass
class PoolConfig:
    """The trajectory pool."""

    num_batches: Annotated[int, Range(1)] = 200
    """Flows of sinkhorn.batch_size particles that fill the pool."""
    storage: Annotated[Literal["memory", "disk"], FREE_ON_RESUME] = "memory"
    """Main memory, or a file in the run folder, which an interrupted run continues."""
    dtype: Literal["auto", "float32", "float16"] = "auto"
    """Type of stored positions; auto: float32 if it fits (images: half of the free memory), else
    float16."""
    build_batch: Annotated[int | Literal["auto"], Range(1), FREE_ON_RESUME] = "auto"
    """Flows simulated together, halved if the card is full. Does not change results."""


@dataclass
class MLPConfig:
    """Networks for points, with three hidden layers."""

    width: Annotated[int, Range(1, 2**16)] = 256
    """Units of a hidden layer."""


@dataclass
class UNetConfig:
    """ADM-style UNet (Dhariwal and Nichol 2021) for images."""

    channels: Annotated[int, Range(1, 2**14)] = 32
    """Channels at full resolution, a multiple of 32 (GroupNorm has 32 groups)."""
    res_blocks: Annotated[int, Range(1, 100)] = 1
    """Residual blocks of a level on the way down; one more on the way up."""
    mult: Annotated[list[int], Range(1, 64)] = field(default_factory=lambda: [1, 2])
    """Channel multiplier of each level; each further level halves the resolution."""
    attention: Annotated[list[int], Range(1)] = field(default_factory=list)
    """Resolutions in pixels with self-attention."""
    heads: Annotated[int, Range(1)] = 1
    """Attention heads; they divide the channels of every level that has attention."""
    dropout: Annotated[float, Range(0, below=1)] = 0.0
    """Dropout probability inside residual blocks."""


@dataclass
class ModelConfig:
    """Networks: mlp for points, unet for images."""

    mlp: MLPConfig = field(default_factory=MLPConfig)
    unet: UNetConfig = field(default_factory=UNetConfig)
    predictor_channels: Annotated[list[int], Range(1, 2**14)] = field(
        default_factory=lambda: [32, 64, 128, 256]
    )
    """Convolution layers of the time predictor for images; each halves the resolution."""
    checkpoint_activations: Annotated[bool, FREE_ON_RESUME] = False
    """Recompute activations of a unet in the backward pass: less memory, a third more time."""


@dataclass
class OptimConfig:
    """Optimization of every phase that does not set a value of its own: Adam, warm-up, EMA."""

    iterations: Annotated[int, Range(0)] = 20_000
    """Optimizer updates."""
    batch_size: Annotated[int, Range(1)] = 256
    """Samples of one update."""
    lr: Annotated[float, Range(above=0, maximum=1)] = 1e-3
    """Adam's learning rate after warm-up."""
    warmup_steps: Annotated[int, Range(0)] = 0
    """Updates over which the rate grows linearly to lr."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Rate after warm-up: constant, or half a cosine down to 0 at the last update."""
    clip_norm: Annotated[float | None, Range(above=0)] = 1.0
    """Largest norm of the gradient; null: no clipping."""
    ema_decay: Annotated[float, Range(0, below=1)] = 0.999
    """Largest decay of the moving average of weights, after a warm-up; 0: no average."""


@dataclass
class NSFConfig(OptimConfig):
    """Phase 2, the straight flow (NSF)."""

    source: Literal["prior", "nsgf"] = "prior"
    """Start X0 of the straight line: mu0, or where the NSGF steps end. The latter without phase
    predictor is a hand-over: samples enter the straight flow at time 0."""
    coupling: Literal["independent", "ot"] = "independent"
    """Pairs (X0, X1): as drawn, or paired by exact optimal transport within groups."""
    coupling_batch: Annotated[int | None, Range(2, 2**14)] = None
    """Samples of a group of ot; null: batch_size. Pairing 1024 on the CPU takes 0.15 s."""
    starts: Annotated[int | None, Range(1)] = None
    """With source nsgf: ends of NSGF steps to compute once and reuse; null: always new ones."""
    init: Literal["random", "nsgf"] = "random"
    """First weights of the straight-flow network: random, or the velocity network's average."""


PeerName = Literal["icfm", "otcfm", "sbcfm", "rf"]


@dataclass
class PeerConfig(OptimConfig):
    """A method that NSGF is compared with, phase ``peer`` (extra `compare`)."""

    method: PeerName = "icfm"
    """torchcfm's independent pairs, exact transport in the batch, or Schroedinger bridge; or
    rectified flow (independent pairs, no noise)."""
    sigma: Annotated[float, Range(0, 1e6)] = 0.1
    """Width of the noise around the line between a pair; sbcfm: of its bridge, > 0."""
    coupling_batch: Annotated[int | None, Range(2, 2**14)] = None
    """Samples of a group of otcfm, as nsf.coupling_batch; null: torchcfm's own, the batch of each
    process."""


@dataclass
class ReflowConfig(OptimConfig):
    """Phase ``reflow``: the peer's network, trained again on the ends of its own paths (2-RF)."""

    pairs: Annotated[int, Range(1)] = 65_536
    """Starts and ends of paths to keep in memory."""


@dataclass
class GeneratorConfig(OptimConfig):
    """Phase ``generator``: one network call from noise to data, trained by the Sinkhorn flow of the
    two halves of a batch. With phases [nsgf, generator] it starts as the velocity network."""

    targets: Annotated[int | None, Range(4)] = None
    """Real samples of one update, half of them for each half of the batch; null: batch_size."""
    blurs: Annotated[list[float], Range(above=0, maximum=1e6)] = field(
        default_factory=lambda: [0.1]
    )
    """Square roots of eps, in units of the root of the mean cost between generated and real
    samples: 0.1 makes eps a hundredth of that cost. The velocities of several are averaged."""
    tolerance: Annotated[float, Range(above=0)] = 5e-4
    """As sinkhorn.tolerance."""


@dataclass
class TrainConfig:
    """Records, and how updates use the hardware, in all phases."""

    log_every: Annotated[int, Range(1)] = 100
    """Updates between two lines of metrics.jsonl."""
    checkpoint_every: Annotated[int, Range(1)] = 1000
    """Updates between two checkpoints inside a phase."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Arithmetic of the networks' layers; weights and losses stay float32. auto: bf16 if the card
    has it, fp16 if it has tensor cores only for that (T4), else fp32."""
    accumulate: Annotated[int, Range(1)] = 1
    """Parts of the batch of an update: less memory, same update. Doubled if the card is full."""
    compile: bool = False
    """Compile networks with torch.compile: the first update takes minutes, later ones less."""
    max_hours: Annotated[float | None, Range(above=0)] = None
    """Hours after which training saves a checkpoint, says how to resume, and ends; null: none."""
    preview: bool = True
    """Draw samples at the end of each phase, samples/phaseN_PHASE.png."""


@dataclass
class TrackingConfig:
    """A tracker besides the files of the run folder."""

    tracker: Literal["none", "wandb", "wandb-offline", "tensorboard"] = "none"
    """wandb: upload to Weights & Biases, offline if that fails; wandb-offline: keep in the run
    folder for `wandb sync`; tensorboard: files in the run folder. W&B reads WANDB_PROJECT and
    WANDB_ENTITY."""


@dataclass
class SamplingConfig:
    """Sampling (Algorithms 2 and 4)."""

    num_samples: Annotated[int, Range(1)] = 64
    """Samples to draw; --num-samples also sets how many are measured."""
    batch_size: Annotated[int, Range(1)] = 256
    """Samples that go through the networks together; halved if the card is full."""
    label: Annotated[str | int | None, Range(0)] = None
    """With data.conditional: class of all samples, its name or its number from 0 on; null: class i
    mod K for sample i."""
    guidance: Annotated[float, Range(0, 1000)] = 1.0
    """With data.conditional: w in a + w (b - a), of the answers a without and b with the class (Ho
    and Salimans 2022). Every value but 1, which is b, calls each network twice."""
    nsgf_steps: Annotated[int | None, Range(1)] = None
    """Euler steps with the velocity network over the flow's time; null: flow.steps."""
    tau: Annotated[float | None, Range(0, below=1)] = None
    """Time at which all samples enter the straight flow; null: each at its predicted time."""
    solver: SolverName = "euler"
    """Of the straight flow. heun: second order, two calls a step; dopri5: adaptive steps; both need
    the extra `ode`."""
    straight_steps: Annotated[int, Range(1)] = 10
    """Equal steps of each sample from its time tau to 1; dopri5: states shown."""
    omega: Annotated[float | None, Range(1e-6, 1)] = None
    """Fixed step size of euler instead of straight_steps; the number then differs by sample."""
    tolerance: Annotated[float, Range(1e-7, 1)] = 1e-5
    """dopri5: error of a step over the batch, relative to the state and in units of the data."""


@dataclass
class EvaluationConfig:
    """Measures of `nsgf evaluate`."""

    num_samples: Annotated[int, Range(1)] = 4096
    """Number of generated samples."""
    w2_samples: Annotated[int, Range(1)] = 4096
    """Largest number of samples of an exact W2, whose time grows with its cube."""
    inception: bool = False
    """Measure FID, Inception score, KID, precision and recall of images (extra `fidelity`)."""
    inception_weights: Annotated[str | None, MACHINE_PATH] = None
    """File with torch-fidelity's Inception weights; null: download them."""
    classifier: bool = False
    """Measure Frechet distance, precision and recall in the features of a small classifier trained
    on the labelled images (extra `fidelity`). Compare it only with numbers of this program."""


TargetName = Literal[PointName, "8gaussians_moons"]


@dataclass
class CompareConfig:
    """Trials and measures of `nsgf compare`."""

    methods: list[str] = field(default_factory=lambda: ["nsgf", "icfm", "otcfm"])
    """Methods, of configs/methods or your own YAML files. Each has as many updates as the
    experiment's own method, shared among its networks in proportion to their iterations. 2rf trains
    as many again after those of 1rf."""
    updates: Annotated[list[int], Range(1)] = field(default_factory=list)
    """Updates of all networks of a method together: one number for all methods, or one for each
    (then 2rf shares them too); empty: as many as the experiment's own method."""
    targets: list[TargetName] = field(default_factory=list)
    """2D sets, 8gaussians_moons from 8gaussians instead of noise; empty: data.name."""
    seeds: Annotated[int, Range(1, 1000)] = 5
    """Runs of each method, with seeds seed, seed + 1, ..."""
    draws: Annotated[int, Range(1, 1000)] = 1
    """Draws of noise and target to measure each run with. Tables show the mean and spread of the
    seeds' means, or of the draws with one seed."""
    nfe: Annotated[list[int], Range(1)] = field(default_factory=lambda: [10, 100])
    """Network calls for each sample. nsgf++ needs at least 3, nsgf++h 2, the others 1, a straight
    flow with Heun's steps one more. onecall and onecall+ are measured with 1 call only."""


@dataclass
class Config:
    """One experiment."""

    exp: str = "2d"
    """Name of the experiment: configs/NAME.yaml, and the first part of the run folder's name."""
    method: str = ""
    """Method: a file of configs/methods, or your own YAML file."""
    phases: list[PhaseName] = field(default_factory=lambda: list(PHASES))
    """Phases to train, in order: nsgf; nsgf, nsf; or nsgf, nsf, predictor. One call: generator; or
    nsgf, generator. Flow matching: peer; or peer, reflow."""
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    """Seed of every random number of the run."""
    device: str = "auto"
    """auto (cuda if torch can use one, else cpu), cpu, cuda, cuda:N; untested: mps, xpu."""
    out_dir: Annotated[str, MACHINE_PATH] = "runs"
    """Folder of the run folders."""
    smoke: bool = False
    """A small run to see whether everything works. Commands without --smoke do not find it."""
    data: DataConfig = field(default_factory=DataConfig)
    sinkhorn: SinkhornConfig = field(default_factory=SinkhornConfig)
    flow: FlowConfig = field(default_factory=FlowConfig)
    pool: PoolConfig = field(default_factory=PoolConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    nsgf: OptimConfig = field(default_factory=OptimConfig)
    nsf: NSFConfig = field(default_factory=NSFConfig)
    predictor: OptimConfig = field(default_factory=OptimConfig)
    peer: PeerConfig = field(default_factory=PeerConfig)
    reflow: ReflowConfig = field(default_factory=ReflowConfig)
    generator: GeneratorConfig = field(default_factory=GeneratorConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    compare: CompareConfig = field(default_factory=CompareConfig)

    @property
    def starts_as_velocity(self) -> bool:
        """Whether the generator starts as the velocity network: G(z) = z + g(z, 0)."""
        return ONE_CALL[0] in self.phases


@dataclass
class Settings(Config):
    """Settings of files and flags: a configuration, and what its phases have in common."""

    optim: OptimConfig = field(default_factory=OptimConfig)


OF_PHASES = tuple(
    item.name
    for item in fields(Config)
    if isinstance(item.type, type) and issubclass(item.type, OptimConfig)
)
"""Sections that inherit from ``optim``, one for each phase."""
