"""The typed configuration: every leaf is documented here and becomes a command-line flag.

The docstring below a field is its help text; its annotation gives the allowed range and whether it
may change on resume. What depends on several fields at once is checked in :mod:`nsgf.checks`.
"""

from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from nsgf.config.leaves import FREE_ON_RESUME, MACHINE_PATH, Range

PhaseName = Literal["nsgf", "nsf", "predictor", "peer", "reflow", "generator"]
PHASES: tuple[PhaseName, ...] = ("nsgf", "nsf", "predictor")
"""NSGF++."""
PEER_PHASES: tuple[PhaseName, ...] = ("peer", "reflow")
"""What it is compared with."""
ONE_CALL: tuple[PhaseName, ...] = ("nsgf", "generator")
"""From noise to data with one network call; the first is left out where the second does not begin
with its weights."""
FAMILIES: tuple[tuple[PhaseName, ...], ...] = (PHASES, PEER_PHASES, ONE_CALL)
"""Phases that one experiment may train, in their order, which numbers their files."""


def family(phase: PhaseName) -> tuple[PhaseName, ...]:
    """Return the first family of phases that holds this one, in the order of training."""
    return next(names for names in FAMILIES if phase in names)


PointName = Literal["8gaussians", "moons", "scurve", "checkerboard"]
ImageName = Literal["digits", "mnist", "cifar10"]
OwnName = Literal["images", "points"]
SourceName = Literal["gaussian", "8gaussians"]
"""Names of data sets, whose records are in :mod:`nsgf.data`."""
SolverName = Literal["euler", "heun", "dopri5"]
"""Their records are in :mod:`nsgf.sampling.solvers`."""


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
    """Networks are told the class of each sample: images with labels, or own images in subfolders,
    which come class by class, each equally often. For generator, nsgf, nsf and predictor."""
    path: Annotated[str | None, MACHINE_PATH, FREE_ON_RESUME] = None
    """images: a folder of them, with or without subfolders; points: a file .npz, .npy or .csv."""
    size: Annotated[int | None, Range(4, 1024)] = None
    """images: pixels of a side; the middle square of each image is scaled to it; null: 32."""
    found: dict[str, Any] = field(default_factory=dict)
    """What the program found at data.path when the run was begun; a resumed run must find the same.
    Filled in by the program."""


@dataclass
class SinkhornConfig:
    """Entropic optimal transport on one mini-batch, cost 1/2 |x - y|^2, eps = blur^2."""

    solver: Literal["batched", "geomloss"] = "batched"
    """batched solves many flows at once to a tolerance; geomloss differentiates the library's
    divergence, one flow at a time."""
    batch_size: Annotated[int, Range(1)] = 256
    """Particles n of one flow."""
    target_batch: Annotated[int | None, Range(1)] = None
    """Targets m of one flow, also more than particles; null: as many. As many as an image set has
    images: each flow meets every one once."""
    blur: Annotated[float, Range(above=0, maximum=1e6)] = 0.5
    """Square root of the regularization eps, in units of the data."""
    scaling: Annotated[float, Range(above=0, below=1)] = 0.8
    """geomloss: ratio of two successive blurs of the annealing; closer to 1 is slower and more
    exact."""
    tolerance: Annotated[float, Range(above=0)] = 5e-4
    """batched, and the phase generator: largest L1 error of a plan's marginals (1 is all the mass);
    smaller still, in proportion, where particles move by less than the blur."""

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
    """Step size eta of the constant schedule: X^{t+1} = X^t + eta v. The pool keeps positions, of
    which smaller steps would leave nothing in float32."""
    schedule: Literal["constant", "harmonic"] = "constant"
    """constant: eta in every step. harmonic: 1/T, 1/(T-1), ..., 1, equal parts of the way; the last
    step arrives."""


@dataclass
class PoolConfig:
    """The trajectory pool."""

    num_batches: Annotated[int, Range(1)] = 200
    """Flows of sinkhorn.batch_size particles each that fill the pool."""
    storage: Annotated[Literal["memory", "disk"], FREE_ON_RESUME] = "memory"
    """Main memory, or a file in the run folder, which an interrupted run goes on with."""
    dtype: Literal["auto", "float32", "float16"] = "auto"
    """Type of the stored positions; auto: float32 where it fits (images: into half of the free
    memory), else float16."""
    build_batch: Annotated[int | Literal["auto"], Range(1), FREE_ON_RESUME] = "auto"
    """Flows simulated together while building; auto: as many as pay. Halved by itself where they do
    not fit the card. No setting of the results."""


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
    """Networks: mlp for points, unet for images. The velocity network and the straight-flow network
    have the same architecture."""

    mlp: MLPConfig = field(default_factory=MLPConfig)
    unet: UNetConfig = field(default_factory=UNetConfig)
    predictor_channels: Annotated[list[int], Range(1, 2**14)] = field(
        default_factory=lambda: [32, 64, 128, 256]
    )
    """Convolution layers of the time predictor for images; each halves the resolution."""
    checkpoint_activations: Annotated[bool, FREE_ON_RESUME] = False
    """Recompute the activations of each block of a unet in the backward pass: less memory, about a
    third more time, same results. No effect on mlp and the time predictor."""


@dataclass
class OptimConfig:
    """Optimization: Adam, warm-up, clipping, EMA. The section optim holds for every phase that does
    not set a value of its own."""

    iterations: Annotated[int, Range(0)] = 20_000
    """Optimizer updates."""
    batch_size: Annotated[int, Range(1)] = 256
    """Samples of one update."""
    lr: Annotated[float, Range(above=0, maximum=1)] = 1e-3
    """Adam's learning rate after warm-up. A weight moves by about as much in an update, and begins
    below 1."""
    warmup_steps: Annotated[int, Range(0)] = 0
    """Updates over which the rate grows linearly to lr."""
    schedule: Literal["constant", "cosine"] = "constant"
    """The rate after warm-up: constant, or half a cosine down to 0 at the last update."""
    clip_norm: Annotated[float | None, Range(above=0)] = 1.0
    """Largest norm of the gradient; null: no clipping."""
    ema_decay: Annotated[float, Range(0, below=1)] = 0.999
    """Largest decay of the moving average of the weights, reached by a warm-up; 0: no average."""


@dataclass
class NSFConfig(OptimConfig):
    """Phase 2, the straight flow (NSF)."""

    source: Literal["prior", "nsgf"] = "prior"
    """Start X0 of the straight line: mu0, or where the NSGF steps end. Without the phase predictor
    the latter is a hand-over: samples then enter the straight flow at time 0."""
    coupling: Literal["independent", "ot"] = "independent"
    """Pairs (X0, X1): as drawn, or re-paired by exact optimal transport within groups."""
    coupling_batch: Annotated[int | None, Range(2, 2**14)] = None
    """Samples of a group of ot; null: batch_size. Found on the CPU: 0.15 s for 1024, and eight
    times as long for twice as many."""
    starts: Annotated[int | None, Range(1)] = None
    """With source nsgf: samples that the NSGF steps are walked from, once; they are kept in main
    memory and come again and again, with other ends. null: always new ones, which takes longer.
    """
    init: Literal["random", "nsgf"] = "random"
    """Weights with which the straight-flow network begins: random ones, or the averaged ones of the
    velocity network, which has the same architecture."""


PeerName = Literal["icfm", "otcfm", "sbcfm", "rf"]


@dataclass
class PeerConfig(OptimConfig):
    """A method that NSGF is compared with, phase ``peer`` (extra `compare`)."""

    method: PeerName = "icfm"
    """Flow matching by torchcfm: independent pairs, exact transport within the batch, Schroedinger
    bridge, or rectified flow (independent pairs, no noise)."""
    sigma: Annotated[float, Range(0, 1e6)] = 0.1
    """Width of the noise around the line between a pair; sbcfm: of its bridge, and > 0."""
    coupling_batch: Annotated[int | None, Range(2, 2**14)] = None
    """Pairs of otcfm within groups of so many samples, as nsf.coupling_batch; null: torchcfm's own,
    within the batch of each process."""


@dataclass
class ReflowConfig(OptimConfig):
    """Phase ``reflow``: the peer's network once more, on the ends of its own paths (2-RF)."""

    pairs: Annotated[int, Range(1)] = 65_536
    """Starts and ends of paths that are kept in memory."""


@dataclass
class GeneratorConfig(OptimConfig):
    """Phase ``generator``: one network call from noise to data, trained by the Sinkhorn flow. The
    two halves of a batch are each other's second batch: a transport problem has half as many
    particles."""

    targets: Annotated[int | None, Range(4)] = None
    """Real samples of one update, a half of them for each half of the batch; null: as many as
    batch_size."""
    blurs: Annotated[list[float], Range(above=0, maximum=1e6)] = field(
        default_factory=lambda: [0.1]
    )
    """Square roots of the regularization eps, in units of the root of the mean cost between
    generated and real samples: 0.1 makes eps a hundredth of that cost. Of several the velocities'
    mean is taken."""
    tolerance: Annotated[float, Range(above=0)] = 5e-4
    """As sinkhorn.tolerance."""
    residual: bool = False
    """G(z) = z + g(z, 0), which a velocity network means; false: G(z) = g(z, 0), which need not
    take away the noise of every pixel."""
    init: Literal["random", "nsgf"] = "random"
    """Weights to begin with: random ones, or the averaged ones of the run's own velocity network,
    then phases are [nsgf, generator]."""


@dataclass
class TrainConfig:
    """What all phases share: records, and how updates use the hardware."""

    log_every: Annotated[int, Range(1)] = 100
    """Updates between two lines of metrics.jsonl."""
    checkpoint_every: Annotated[int, Range(1)] = 1000
    """Updates between two checkpoints inside a phase."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Arithmetic of the networks' layers. auto: bf16 where the card has it, fp16 on cards with
    tensor cores for it alone (T4), else fp32, also on a CPU. Weights and losses are float32 in any
    case."""
    accumulate: Annotated[int, Range(1)] = 1
    """Parts that the batch of an update is split into: less memory, the same update. Doubled by
    itself where the batch does not fit the card."""
    compile: bool = False
    """Compile the networks with torch.compile: the first update takes minutes, the others less."""
    max_hours: Annotated[float | None, Range(above=0)] = None
    """Hours after which training saves a checkpoint, says how to go on, and ends; null: none."""
    preview: bool = True
    """A picture of samples at the end of each phase, samples/phaseN_PHASE.png."""


@dataclass
class TrackingConfig:
    """A tracker, besides the files of the run folder."""

    tracker: Literal["none", "wandb", "wandb-offline", "tensorboard"] = "none"
    """wandb: upload to Weights & Biases while training, offline where that is impossible;
    wandb-offline: keep in the run folder for `wandb sync`; tensorboard: files in the run folder
    (extra `tensorboard`). W&B reads WANDB_PROJECT and WANDB_ENTITY."""


@dataclass
class SamplingConfig:
    """Sampling (Algorithms 2 and 4)."""

    num_samples: Annotated[int, Range(1)] = 64
    """Samples that `nsgf sample` draws."""
    batch_size: Annotated[int, Range(1)] = 256
    """Samples that go through the networks together; halved by itself where the card is full."""
    label: Annotated[int | None, Range(0)] = None
    """With data.conditional the class of all samples, from 0 on; null: each class in turn, sample i
    has class i mod K."""
    guidance: Annotated[float, Range(0, 1000)] = 1.0
    """With data.conditional w of a network's answer, a + w (b - a), of a without and b with the
    class (Ho and Salimans 2022). 1 is b alone; any other value asks each network twice."""
    nsgf_steps: Annotated[int | None, Range(1)] = None
    """Euler steps with the velocity network over the whole flow time; null: flow.steps."""
    tau: Annotated[float | None, Range(0, below=1)] = None
    """Time at which all samples enter the straight flow, without a time predictor; null: each at
    its predicted time."""
    solver: SolverName = "euler"
    """Of the straight flow. heun: second order, two network calls a step; dopri5: adaptive steps;
    both need the extra `ode` (torchdiffeq)."""
    straight_steps: Annotated[int, Range(1)] = 10
    """Equal steps of each sample from its time tau to 1; with dopri5 only the states shown."""
    omega: Annotated[float | None, Range(1e-6, 1)] = None
    """Fixed step of euler instead of straight_steps; steps then differ by sample."""
    tolerance: Annotated[float, Range(1e-7, 1)] = 1e-5
    """dopri5: error of a step, relative to the state and in units of the data, over the batch."""


@dataclass
class EvaluationConfig:
    """What `nsgf evaluate` measures."""

    num_samples: Annotated[int, Range(1)] = 4096
    """Number of generated samples; of points per repetition."""
    w2_samples: Annotated[int, Range(1)] = 4096
    """Largest number of samples of an exact W2, whose cost grows with its cube."""
    inception: bool = False
    """Measure FID, Inception score, KID, precision and recall in the features of the Inception
    network (image sets; needs the extra `fidelity`)."""
    inception_weights: Annotated[str | None, MACHINE_PATH] = None
    """File with torch-fidelity's Inception weights; null: they are downloaded."""
    classifier: bool = False
    """Measure Frechet distance, precision and recall in the features of a small classifier that is
    trained on the labelled training images (image sets; needs the extra `fidelity`). Not Inception
    FID, and comparable with nothing but other numbers of this program."""


TargetName = Literal[PointName, "8gaussians_moons"]


@dataclass
class CompareConfig:
    """What `nsgf compare` trains and measures."""

    methods: list[str] = field(default_factory=lambda: ["nsgf", "icfm", "otcfm"])
    """Methods, of configs/methods or YAML files of your own. Each is trained with the same number
    of updates, shared among its networks in proportion to their iterations: as many as the
    experiment's own method has. 2rf trains as many again after those of 1rf."""
    updates: Annotated[list[int], Range(1)] = field(default_factory=list)
    """Updates of all networks of a method together: one number for all methods, or one for each
    (then 2rf shares them too); empty: as many as the experiment's own method has."""
    targets: list[TargetName] = field(default_factory=list)
    """2D sets, 8gaussians_moons from 8gaussians instead of noise; empty: the data section's own."""
    seeds: Annotated[int, Range(1, 1000)] = 5
    """Runs of each method, with seeds seed, seed + 1, ..."""
    draws: Annotated[int, Range(1, 1000)] = 1
    """Draws of noise and target that each run is measured with; tables show the mean and
    spread of the seeds' means, with one seed those of its draws."""
    nfe: Annotated[list[int], Range(1)] = field(default_factory=lambda: [10, 100])
    """Network calls for each sample. A method is not measured with fewer calls than it needs:
    nsgf++ needs 3, nsgf++h 2, the others 1, with Heun's steps one more for a straight flow. onecall
    and onecall+ are measured with 1 call only."""


@dataclass
class Config:
    """One experiment."""

    exp: str = "2d"
    """Name of the experiment: configs/NAME.yaml, and the beginning of the run folder's name."""
    method: str = ""
    """Method: a file of configs/methods, or a YAML file of your own. Empty in runs of earlier
    versions."""
    phases: list[PhaseName] = field(default_factory=lambda: list(PHASES))
    """What is trained, in this order: nsgf; nsgf, nsf; or nsgf, nsf, predictor. For one call:
    generator; or nsgf, generator. For comparison: peer; or peer, reflow."""
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    """Every random number of the run follows from it."""
    device: str = "auto"
    """auto (cuda if there is one that torch can use, else cpu), cpu, cuda or cuda:N; mps or xpu,
    which nobody has tried."""
    out_dir: Annotated[str, MACHINE_PATH] = "runs"
    """Folder that holds the run folders."""
    smoke: bool = False
    """A run that only tries whether everything works (set by --smoke): its folder is named so, and
    it is never taken for the newest run unless --smoke is given."""
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


@dataclass
class Settings(Config):
    """What a file and flags may say: a configuration, and what its phases have in common."""

    optim: OptimConfig = field(default_factory=OptimConfig)


OF_PHASES = tuple(
    item.name
    for item in fields(Config)
    if isinstance(item.type, type) and issubclass(item.type, OptimConfig)
)
"""Sections that inherit from ``optim``, one for each phase."""
