"""The typed configuration: each field is documented here and becomes a command-line flag.

The docstring below a field is the help text. The annotation of a field gives the allowed range, and
whether the value may change on resume. :mod:`nsgf.settings.checks` checks rules between fields.
"""

import math
from dataclasses import dataclass, field, fields
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

from nsgf.config.values import format_value

MANY = 1_000_000_000
"""Maximum of a number if the schema sets no maximum."""
MOST_STEPS = 100_000
"""Largest number of steps, or of network calls, for one sample. More steps would not change the
samples, and would take hours."""
FREE_ON_RESUME = "free on resume"
"""Marks a setting that changes files, memory or time, but not results."""
MACHINE_PATH = "machine path"
"""Marks a setting that names a file or a folder of this machine."""


class OnlyIf(NamedTuple):
    """Marks a setting that has an effect only if the setting ``key`` has one of ``values``."""

    key: str
    """Dotted key of the required setting."""
    values: tuple[Any, ...]

    def holds(self, config: "Config") -> bool:
        """Whether the setting ``key`` has one of the values."""
        return attrgetter(self.key)(config) in self.values

    def __str__(self) -> str:
        return f"{self.key} is {' or '.join(map(format_value, self.values))}"


@dataclass(frozen=True)
class Range:
    """Allowed values of a number, or of each number in a list: from ``minimum`` to ``maximum``,
    larger than ``above`` and smaller than ``below``."""

    minimum: float = -math.inf
    maximum: float = MANY
    above: float = -math.inf
    below: float = math.inf

    def __contains__(self, number: float | None) -> bool:
        return (
            number is not None
            and self.minimum <= number <= self.maximum
            and self.above < number < self.below
        )

    def __str__(self) -> str:
        maximum = self.maximum if self.below == math.inf else math.inf
        bounds = [(">=", self.minimum), (">", self.above), ("<", self.below), ("<=", maximum)]
        return " and ".join(f"{sign} {bound}" for sign, bound in bounds if math.isfinite(bound))


Shape = tuple[int, ...]
Names = tuple[str, ...]
Count = Annotated[int, Range(1)]
CountOrNull = Annotated[int | None, Range(1)]
Counts = Annotated[list[int], Range(1)]
Part = Annotated[float, Range(0, below=1)]
Steps = Annotated[int, Range(1, MOST_STEPS)]
StepsOrNull = Annotated[int | None, Range(1, MOST_STEPS)]
Positive = Annotated[float, Range(above=0)]
PositiveOrNull = Annotated[float | None, Range(above=0)]
Blur = Range(above=0, maximum=1e6)
GroupOrNull = Annotated[int | None, Range(2, 2**14)]
Repeats = Annotated[int, Range(1, 1000)]
PhaseName = Literal["nsgf", "nsf", "predictor", "peer", "reflow", "generator"]
PHASE_NUMBERS: dict[PhaseName, int] = {"nsf": 2, "predictor": 3, "reflow": 2, "generator": 2}
"""Number of a phase in the names of its files. All further phases have number 1."""
PointName = Literal["8gaussians", "moons", "scurve", "checkerboard"]
CHANGED_SETS = ("8gaussians", "moons")
"""2D sets whose distribution has changed. They have edition 2, and all further sets have edition
1."""
ImageName = Literal["digits", "mnist", "cifar10"]
OwnName = Literal["images", "points"]
SolverName = Literal["euler", "heun", "dopri5"]
FlowKind = Literal["sinkhorn", "energy", "geomloss"]


STANDARD = "gaussian"
"""Value of ``data.source`` for the standard Gaussian, which has the shape of the target."""
SOURCE_FILE = "file"
"""Value of ``data.source`` for samples at ``data.source_path``."""
SOURCES = (STANDARD, "8gaussians", SOURCE_FILE)
"""Values of ``data.source``. :func:`nsgf.config.layers.build` takes any further value as a path."""


def edition_of(*names: str) -> int:
    """Return the edition of the 2D sets with these names."""
    return 2 if {*names} & {*CHANGED_SETS} else 1


@dataclass(frozen=True)
class DataFacts:
    """Facts about the data at ``data.path``. A resumed run must find the same facts."""

    samples: int
    """Number of images or points."""
    shape: list[int]
    """Shape of one sample: (C, H, W), or (D,)."""
    checksum: str
    """Checksum of all images (names and contents), or of all points and their classes."""
    classes: int = 0
    """Number of classes; 0: the data have no classes, or a class has too few images."""
    names: list[str] | None = None
    """Names of the D coordinates of points."""
    mean: list[float] | None = None
    """Mean of each coordinate, in the units of the file."""
    scale: list[float] | None = None
    """Standard deviation of each coordinate."""
    class_names: list[str] | None = None
    """Names of the classes."""
    broken: list[str] | None = None
    """Files that ``data.skip_broken`` leaves out."""
    label_name: str | None = None
    """Name of the column with the classes of points; None: the points have no classes."""
    source: "DataFacts | None" = None
    """Facts about the samples at ``data.source_path``; None: the source is a distribution."""

    def plain(self) -> dict[str, Any]:
        """Return the facts as they are saved."""
        facts = {item.name: getattr(self, item.name) for item in fields(self)}
        return facts | {"source": self.source and self.source.plain()}


@dataclass(frozen=True)
class DataConfig:
    """Source mu0 and target mu*."""

    name: Literal[PointName, ImageName, OwnName] = "8gaussians"
    """Target mu*: a 2D set, an image set, or your own images or points at data.path."""
    source: str = STANDARD
    """Source mu0. gaussian: the standard Gaussian. 8gaussians: only for 2D targets. A path: a file
    or folder of the same kind as your own target; its samples are moved to the target. For a path,
    a run saves the value file here and the path in data.source_path."""
    source_path: Annotated[
        str | None, MACHINE_PATH, FREE_ON_RESUME, OnlyIf("data.source", (SOURCE_FILE,))
    ] = None
    """File or folder of the source, of the same kinds as data.path. Set it by data.source PATH."""
    root: Annotated[str, MACHINE_PATH, FREE_ON_RESUME] = "data"
    """Folder of the downloaded image sets, in torchvision's layout."""
    download: Annotated[bool, FREE_ON_RESUME] = True
    """Download an image set that is not in data.root."""
    fake: bool = False
    """Replace an image set by random images of the same shape."""
    flip: bool = False
    """Mirror training images left to right with probability 1/2."""
    conditional: bool = False
    """Give networks the class of each sample. The data must be images with labels, your own images
    in subfolders, or points with data.label. With data.label, the default is true."""
    path: Annotated[str | None, MACHINE_PATH, FREE_ON_RESUME] = None
    """Your own data. For images: a folder, a .npz file with images (N, C, H, W) or (N, H, W, C) and
    perhaps labels (N,), or a .npy file. For points: a .csv, .tsv, .txt, .parquet, .xlsx, .npz or
    .npy file."""
    size: Annotated[int | Literal["auto"] | None, Range(4, 1024)] = None
    """Side in pixels to which the middle square of each image in a folder is scaled. auto or null:
    if all images are squares of one size up to 64, this size, rounded down so that repeated halving
    reaches 16 or less. Otherwise 32. Images in a file keep their size."""
    skip_broken: bool = False
    """Leave out image files of a folder that cannot be read."""
    header: Literal["auto"] | bool = "auto"
    """Whether the first row of a .csv, .tsv, .txt or .xlsx file has the names of the columns. auto:
    true if a cell of this row is not a number."""
    columns: str | None = None
    """Columns of points to use, as A,B,C: only names, or only numbers (from 1). null: all."""
    label: str | None = None
    """Column of points that has the class of each row, text or whole numbers: its name, or its
    number (from 1). The column is not a coordinate. In a .npz file, labels may also be the array
    of this name. null: no classes."""
    held_out: Part = 0.0
    """Fraction of your own samples that is kept for measures and not trained on. These samples are
    the same for every seed."""
    key: str | None = None
    """Name of the array of images or points, if a .npz file has several arrays."""
    found: DataFacts | None = None
    """Facts about your own data at data.path. A resumed run must find the same facts."""

    @property
    def edition(self) -> int:
        """Edition of the distributions of source and target. Increase it when draws change."""
        return edition_of(self.name, self.source)


@dataclass(frozen=True)
class SinkhornConfig:
    """Numbers of samples in one flow. If flow.kind is sinkhorn or geomloss, also the settings of
    the entropic optimal transport between these samples, with cost 1/2 |x - y|^2 and eps =
    blur^2."""

    batch_size: Count = 256
    """Number of particles n in one flow."""
    target_batch: CountOrNull = None
    """Number of targets m in one flow; null: the number of particles."""
    blur: Annotated[float, Blur] = 0.5
    """sinkhorn and geomloss: square root of the regularization eps, in units of the data."""
    first_blur: Annotated[float | None, Blur] = None
    """sinkhorn and geomloss: blur of a flow's first step. From step to step, it falls by the same
    factor. The last step uses sinkhorn.blur. null: all steps use sinkhorn.blur, as in the paper."""
    scaling: Annotated[float, Range(above=0, below=1)] = 0.8
    """geomloss: ratio of successive blurs while annealing. A ratio closer to 1 is slower and more
    exact."""
    tolerance: Positive = 5e-4
    """sinkhorn: largest L1 error of a plan's marginals (total mass 1). If particles move by less
    than the blur, the limit shrinks in proportion to their movement."""

    @property
    def targets(self) -> int:
        """Number of targets m in one flow."""
        return self.target_batch or self.batch_size


@dataclass(frozen=True)
class FlowConfig:
    """The discretized gradient flow (Algorithm 1)."""

    kind: FlowKind = "sinkhorn"
    """Gradient flow that NSGF learns. sinkhorn: flow of the Sinkhorn divergence; many flows are
    solved at once to a tolerance. energy: flow of the energy distance, whose speed is at most 2.
    geomloss: like sinkhorn, but the library geomloss solves one flow at a time, and anneals down to
    sinkhorn.blur."""
    steps: Steps = 5
    """Number of steps T of the flow, and of sampling with the velocity network."""
    eta: Annotated[float, Range(1e-6), OnlyIf("flow.schedule", ("constant",))] = 0.2
    """Step size eta of the constant schedule: X^{t+1} = X^t + eta v."""
    schedule: Literal["constant", "harmonic"] = "constant"
    """Step sizes. constant: always eta. harmonic: 1/T, 1/(T-1), ..., 1, so that particles move
    equally far in each step."""

    @property
    def step_size(self) -> float | None:
        """Step size eta; None: harmonic steps."""
        return self.eta if self.schedule == "constant" else None


@dataclass(frozen=True)
class PoolConfig:
    """The trajectory pool."""

    num_batches: Count = 200
    """Number of flows that fill the pool, each of sinkhorn.batch_size particles."""
    storage: Annotated[Literal["memory", "disk"], FREE_ON_RESUME] = "memory"
    """memory: main memory; disk: a file in the run folder, which a resumed run completes."""
    dtype: Literal["auto", "float32", "float16"] = "auto"
    """Type of stored positions. auto: float32 if the pool fits into the free memory, else float16.
    For float32, a pool of images must fit into half of the free memory."""
    build_batch: Annotated[int | Literal["auto"], Range(1), FREE_ON_RESUME] = "auto"
    """Number of flows that are simulated together. The program halves the number if the card is
    full. Does not change results."""


@dataclass(frozen=True)
class MLPConfig:
    """Networks for points, with three hidden layers."""

    width: Annotated[int, Range(1, 2**16)] = 256
    """Units in each hidden layer."""


@dataclass(frozen=True)
class UNetConfig:
    """ADM-style UNet (Dhariwal and Nichol 2021) for images."""

    channels: Annotated[int, Range(1, 2**14)] = 32
    """Channels at full resolution, a multiple of 32 (GroupNorm has 32 groups)."""
    res_blocks: Annotated[int, Range(1, 100)] = 1
    """Residual blocks at each level of the encoder. Each level of the decoder has one more."""
    mult: Annotated[list[int], Range(1, 64)] = field(default_factory=lambda: [1, 2])
    """Channel multiplier of each level. Each further level halves the resolution."""
    attention: Counts = field(default_factory=list)
    """Heights in pixels of the levels with self-attention."""
    heads: Count = 1
    """Attention heads; must divide the channels of every level with attention."""
    dropout: Part = 0.0
    """Dropout probability inside residual blocks."""


@dataclass(frozen=True)
class ModelConfig:
    """Networks: mlp for points, unet for images."""

    mlp: MLPConfig = field(default_factory=MLPConfig)
    unet: UNetConfig = field(default_factory=UNetConfig)
    checkpoint_activations: Annotated[bool, FREE_ON_RESUME] = False
    """Recompute activations of a unet in the backward pass. Training needs less memory, but a third
    more time."""
    network: str | None = None
    """Class of your own network, if you passed one to nsgf.train in place of mlp or unet."""


@dataclass(frozen=True)
class OptimConfig:
    """Adam, warm-up and EMA of all phases. A phase's section wins: nsf.lr overrides optim.lr."""

    iterations: Count = 20_000
    """Number of optimizer updates."""
    batch_size: Count = 256
    """Number of samples in one update."""
    lr: Annotated[float, Range(above=0, maximum=1)] = 1e-3
    """Adam's learning rate after warm-up."""
    warmup_steps: Annotated[int, Range(0)] = 0
    """Number of updates over which the learning rate grows linearly to lr."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate after warm-up. constant: it stays lr. cosine: it falls along half a cosine to 0
    at the last update."""
    clip_norm: PositiveOrNull = 1.0
    """Largest norm of the gradient; null: no clipping."""
    ema_decay: Part = 0.999
    """Decay of the moving average of weights after its warm-up; 0: no average."""


@dataclass(frozen=True)
class NSFConfig(OptimConfig):
    """Phase 2, the straight flow (NSF)."""

    source: Literal["prior", "nsgf", "affine"] = "prior"
    """Start X0 of the straight line. prior: a sample of mu0. nsgf: an end point of the NSGF steps.
    affine: noise after an affine map towards the Gaussian with the data's mean and covariance. The
    map moves the noise as far as flow.steps steps would. Without the phase predictor, samples enter
    the straight flow at time 0."""
    coupling: Literal["independent", "ot"] = "independent"
    """Pairs (X0, X1). independent: X0 and X1 are drawn independently. ot: exact optimal transport
    pairs the X0 and X1 of a group of samples."""
    coupling_batch: Annotated[GroupOrNull, OnlyIf("nsf.coupling", ("ot",))] = None
    """Number of samples in a group of ot; null: batch_size. Pairing 1024 samples takes 0.03 to 0.2
    s on the CPU."""
    starts: Annotated[CountOrNull, OnlyIf("nsf.source", ("nsgf",))] = None
    """With source nsgf: number of end points to compute once and reuse; null: always compute new
    end points."""
    init: Literal["random", "nsgf"] = "random"
    """Initial weights of the straight-flow network: random, or nsgf (the velocity network's
    averaged weights)."""


@dataclass(frozen=True)
class PeerConfig(OptimConfig):
    """Phase peer: a flow-matching method to compare NSGF with."""

    method: Literal["icfm", "otcfm", "sbcfm", "rf"] = "icfm"
    """Flow-matching method. icfm: independent pairs. otcfm: pairs by exact transport in the batch.
    sbcfm: a Schroedinger bridge. icfm, otcfm and sbcfm are as in torchcfm. rf: rectified flow, with
    independent pairs and no noise."""
    sigma: Annotated[float, Range(0, 1e6), OnlyIf("peer.method", ("icfm", "otcfm", "sbcfm"))] = 0.1
    """Standard deviation of the noise around the line of a pair; must be > 0 for sbcfm."""
    coupling_batch: Annotated[GroupOrNull, OnlyIf("peer.method", ("otcfm",))] = None
    """Number of samples that otcfm pairs together; null: batch_size."""


@dataclass(frozen=True)
class ReflowConfig(OptimConfig):
    """Phase reflow: train the peer's network again, on the end points of its paths (2-RF)."""

    pairs: Count = 65_536
    """Number of paths whose end points are kept in memory."""


@dataclass(frozen=True)
class GeneratorConfig(OptimConfig):
    """Phase generator: one network call from noise to data, trained with Sinkhorn velocities
    inside each batch. With phases [nsgf, generator] it starts from the velocity network."""

    targets: Annotated[int | None, Range(4)] = None
    """Number of real samples in one update; null: batch_size. Each half of the batch uses half of
    the real samples."""
    blurs: Annotated[list[float], Blur] = field(default_factory=lambda: [0.1])
    """Square roots of eps. The unit is the root of the mean cost between generated and real
    samples: 0.1 makes eps 1 % of that cost. The velocities for several blurs are averaged."""
    tolerance: Positive = 5e-4
    """Same as sinkhorn.tolerance, for this phase."""


@dataclass(frozen=True)
class TrainConfig:
    """Logs, checkpoints and hardware use, for all phases."""

    log_every: Count = 100
    """Maximum number of updates between two lines of metrics.jsonl. A short phase writes 50
    lines."""
    checkpoint_every: Count = 1000
    """Number of updates between two checkpoints of a phase."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Precision of the networks' layers. Weights and losses stay float32. auto: a resumed run
    continues in the precision of its checkpoints. A new run uses bf16 on a card with bf16 units. It
    uses fp16 on a T4. On a CPU with bf16 units, it uses bf16 for images. Otherwise it uses fp32."""
    accumulate: Count = 1
    """Number of parts into which a batch is divided, to save memory. The update stays the same. If
    memory is full, the program doubles the number."""
    compile: bool = False
    """Compile networks with torch.compile. The first update takes minutes; later updates are
    faster."""
    max_hours: PositiveOrNull = None
    """Hours after which training saves a checkpoint, prints how to resume, and ends. null: no
    limit."""
    preview: bool = True
    """Save a picture of samples at the end of each phase, samples/phaseN_PHASE.png."""


@dataclass(frozen=True)
class TrackingConfig:
    """Experiment tracker, in addition to the files in the run folder."""

    tracker: Literal["none", "wandb", "wandb-offline", "tensorboard"] = "none"
    """Experiment tracker. wandb uploads to Weights & Biases. wandb-offline writes files for `wandb
    sync` into the run folder. tensorboard writes files for TensorBoard into the run folder. W&B
    reads WANDB_MODE, WANDB_PROJECT, WANDB_ENTITY, WANDB_NAME and WANDB_RUN_GROUP."""


@dataclass(frozen=True)
class SamplingConfig:
    """Sampling (Algorithms 2 and 4)."""

    num_samples: Count = 64
    """Number of samples to draw."""
    batch_size: Count = 256
    """Number of samples in one network call. The program halves the number if the card's memory is
    full."""
    label: Annotated[str | int | None, Range(0), OnlyIf("data.conditional", (True,))] = None
    """With data.conditional: class of all samples, by its name or its number (from 0). null: with K
    classes, sample i has class i mod K."""
    guidance: Annotated[float, Range(0, 1000), OnlyIf("data.conditional", (True,))] = 1.0
    """With data.conditional: weight w in a + w (b - a), where a is the network's output without the
    class, and b the output with the class (Ho and Salimans 2022). Values other than 1 call each
    network twice."""
    nsgf_steps: StepsOrNull = None
    """Number of Euler steps with the velocity network. null: flow.steps."""
    tau: Annotated[float | None, Range(0, below=1)] = None
    """Time at which all samples enter the straight flow. null: each sample enters at the time that
    is predicted for it."""
    solver: SolverName = "euler"
    """Solver of the straight flow. euler: one network call per step. heun: second order, two
    network calls per step. dopri5: adaptive steps; it needs the extra `ode`."""
    straight_steps: Annotated[Steps, OnlyIf("sampling.omega", (None,))] = 10
    """Number of steps from each sample's time tau to 1. With dopri5, it only sets the number of
    states in pictures."""
    spacing: Annotated[
        float,
        Range(above=0, maximum=4),
        OnlyIf("sampling.solver", ("euler", "heun")),
        OnlyIf("sampling.omega", (None,)),
    ] = 1.0
    """Power p that sets the sizes of the steps of euler and heun. It has no effect with
    sampling.omega. Step k of n ends at the fraction 1 - (1 - k/n)^p of the way from tau to 1. p =
    1: equal steps, as in the paper. p > 1: steps become smaller towards the data."""
    omega: Annotated[
        float | None, Range(1 / MOST_STEPS, 1), OnlyIf("sampling.solver", ("euler",))
    ] = None
    """Fixed step size for euler, instead of straight_steps; NFE then differs between samples."""
    tolerance: Annotated[float, Range(1e-7, 1), OnlyIf("sampling.solver", ("dopri5",))] = 1e-5
    """dopri5: relative and absolute tolerance of each step, over the whole batch."""


@dataclass(frozen=True)
class EvaluationConfig:
    """Measures that `nsgf evaluate` computes."""

    num_samples: Count = 4096
    """Number of generated samples."""
    w2_samples: Count = 4096
    """Largest number of samples for the exact W2; the time grows with the cube of this number."""
    features: Literal["auto", "imagenet", "inception", "none"] = "auto"
    """Network that computes the features of images. imagenet: EfficientNet-Lite0, which needs the
    extra `features`. inception: for comparison with published figures. none: no features. auto:
    imagenet, or none if its package is missing."""
    inception_weights: Annotated[
        str | None, MACHINE_PATH, OnlyIf("evaluation.features", ("inception",))
    ] = None
    """File with torch-fidelity's Inception weights. null: download them."""
    bits_images: CountOrNull = None
    """Number of real images whose bits per dimension are computed; null: none. The flag
    --bits-per-dim without a number means 256. The images are drawn at random from the held-out
    images or the test images. If there are no such images, they are drawn from the training images.
    An image takes 160 network calls with gradients."""


@dataclass(frozen=True)
class CompareConfig:
    """Trials and measures of `nsgf compare`."""

    methods: list[str] = field(default_factory=lambda: ["nsgf", "icfm", "otcfm"])
    """Names from configs/methods, or your own YAML files. Each method has the same total number of
    updates as the experiment's method. The updates of a method are divided among the method's
    networks in proportion to their iterations. 2rf first trains 1rf, then adds the same number of
    updates."""
    updates: Counts = field(default_factory=list)
    """Number of updates of a method, summed over its networks: one number for all methods, or one
    number for each method. For 2rf, the number includes 1rf. If the list is empty, each method gets
    the number of updates of the experiment's method."""
    targets: list[Literal[PointName, "8gaussians_moons"]] = field(default_factory=list)
    """2D sets to compare on. 8gaussians_moons is moons with source 8gaussians. Empty: data.name."""
    seeds: Repeats = 5
    """Number of runs of each method, with the seeds seed, seed + 1, ..."""
    draws: Repeats = 1
    """Number of times to measure each run, each time with new noise and a new target sample. Tables
    show mean and spread over the seeds. For a single seed, they show mean and spread over the
    draws."""
    nfe: Annotated[list[int], Range(1, MOST_STEPS)] = field(default_factory=lambda: [10, 100])
    """Network calls per sample. nsgf++ needs at least 3 calls. nsgf++h needs at least 2 calls.
    Every further method needs at least 1 call. If sampling.solver is heun, a method with a straight
    flow needs one more call. onecall and onecall+ are measured only with 1 call."""
    tune: dict[str, list[Any]] = field(default_factory=dict)
    """Settings to search for each method and target, as in 'lr=1e-3,3e-3 peer.sigma=0,0.1'. Every
    combination of the settings that a method uses is trained once, with seed + 1000 as its seed.
    The tables use the best combination: the one with the smallest energy distance. If images are
    compared by features, it is the one with the smallest Frechet distance."""
    tune_nfe: StepsOrNull = None
    """Network calls per sample in the search of compare.tune; null: the largest of compare.nfe."""


@dataclass(frozen=True)
class Config:
    """One experiment."""

    exp: str = "2d"
    """Experiment, a file configs/NAME.yaml. The names of its run folders begin with it."""
    method: str = ""
    """Method, a file configs/methods/NAME.yaml, or the path of your own YAML file."""
    phases: list[PhaseName] = field(default_factory=lambda: ["nsgf", "nsf", "predictor"])
    """Phases to train, in order. NSGF: [nsgf], [nsgf, nsf] or [nsgf, nsf, predictor]. With
    nsf.source affine: [nsf]. One call: [generator] or [nsgf, generator]. Flow matching: [peer] or
    [peer, reflow]."""
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    """Seed of all random numbers of the run."""
    device: str = "auto"
    """Device: cpu, cuda, cuda:N, or auto, which selects cuda if torch can use it."""
    out_dir: Annotated[str, MACHINE_PATH] = "runs"
    """Folder that holds the run folders."""
    smoke: bool = False
    """Make a small run to test the installation. Later commands find this run only with --smoke."""
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
    def out_path(self) -> Path:
        """The path ``out_dir``, with ``~`` replaced by the home folder."""
        return Path(self.out_dir).expanduser()

    @property
    def updates(self) -> list[int]:
        """Number of optimizer updates of each phase."""
        return [self.of_phase(phase).iterations for phase in self.phases]

    def of_phase(self, phase: PhaseName) -> OptimConfig:
        """Return the section of a phase."""
        return getattr(self, phase)


OF_PHASES: tuple[PhaseName, ...] = get_args(PhaseName)
"""All phases. Each phase has a section of the same name, which inherits from ``optim``."""
