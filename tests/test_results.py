"""The tables of docs/results.md and README.md follow from the measures in docs/results."""

import csv
import re
from functools import cache
from pathlib import Path
from statistics import mean, stdev

import pytest
from scipy.stats import t as student_t

from nsgf.comparison.tables import by_seed

ROOT = Path(__file__).parents[1]
SETS = ("8gaussians", "moons", "scurve", "checkerboard", "8gaussians_moons")
DIGITS = {"imagenet_frechet": ".1f", "1000 imagenet_kid": ".1f"}
DIGITS |= {"imagenet_precision": ".3f", "imagenet_recall": ".3f"}
FID = {"classifier_fid": "fid", "classifier_precision": ".3f", "classifier_recall": ".3f"}
MEASURES = (*DIGITS, *FID, "w2", "1000 energy", "energy", "parts_off")
METHODS = {
    "real images": "floor",
    "other points": "floor",
    "the same": "affine-fp32",
    "NSGF++: hand-over": "nsgf++h",
    "NSGF++h: `evaluate --pretrained mnist`": "nsgf++h",
    "straight flow after a linear map of the noise": "affine",
    "OT-CFM with the hand-over's pairs": "otcfm+",
}
PAIRS = {
    "2d": "nsgf-otcfm nsgf-sbcfm nsgf-icfm nsgf-1rf nsgf-2rf",
    "digits": "affine-nsgf++h affine-otcfm+ nsgf++h-otcfm+ nsgf++h-nsgf++",
    "mnist_starts": "affine-otcfm+ affine-otcfm affine-nsgf++h affine-nsgf++ nsgf++h-otcfm+",
    "points": "nsgf++h-nsgf nsgf++h-affine nsgf++h-otcfm+ nsgf++h-otcfm nsgf++h-icfm "
    "nsgf++h-nsgf++",
}
"""By file, the pairs whose tests are one family, by all measures and calls (and targets of 2d)."""
Part = tuple[str, str, dict[str, object]]
"""Measure, format ("fid": one decimal below 100, ±: with deviation) and lines of the file."""


@cache
def lines_of(file: str) -> list[dict[str, str]]:
    """Return the lines of a file in one form: a variant is a method, a set is a target."""
    with (ROOT / f"docs/results/{file}.csv").open() as stream:
        lines = [{"seed": "0", "draw": "0"} | line for line in csv.DictReader(stream)]
    for line in lines:
        line["method"] = line.get("recipe") or line.get("method") or line["variant"]
        line["target"] = line.get("target") or line["set"]
        if "measure" in line:
            line[line["measure"]] = line["mean"]
    return lines


def found(file: str, method: str, measure: str, where: dict[str, object]) -> dict[tuple, float]:
    """Return the values of a measure by seed and draw; a time of 0 was not measured."""
    where = {name: where[name] for name in where if name != "nfe" or method != "floor"}
    return {
        (line["seed"], line["draw"] + line["target"]): float(line[measure])
        for line in lines_of(file)
        if line["method"] == method and all(line[name] == str(where[name]) for name in where)
        if line.get(measure) and (measure != "train_seconds" or float(line[measure]))
    }


def paired(file: str, pair: tuple, measure: str, where: dict[str, object]) -> list[float]:
    """Return the differences within the same seed, or within seed and draw if none is tested."""
    one, other = (found(file, name, measure, where) for name in pair)
    kept = sorted(one.keys() & other.keys())
    if file == "mnist_starts" and {"otcfm", "nsgf++"} & {*pair}:
        kept = [key for key in kept if key[0] != "0"]  # measured by another classifier
    values = {key: one[key] - other[key] for key in kept}
    return by_seed(values) if file in PAIRS else [*values.values()]


@cache
def p_values(file: str, target: str | None) -> dict[tuple, tuple[float, float]]:
    """Return p of each paired t test, before and after Holm's correction over the family."""
    cells = {(line["target"], line["nfe"]) for line in lines_of(file) if line["nfe"]}
    tests, corrected, largest = {}, {}, 0.0
    pairs = [tuple(pair.split("-")) for pair in PAIRS[file].split()]
    for pair, measure in ((pair, measure) for pair in pairs for measure in MEASURES):
        for place, nfe in (cell for cell in cells if target in (None, cell[0])):
            values = paired(file, pair, measure, {"target": place, "nfe": nfe})
            if len(values) > 1:
                t = abs(mean(values)) / stdev(values) * len(values) ** 0.5
                tests[pair, measure, place, nfe] = 2 * float(student_t.sf(t, len(values) - 1))
    for place, key in enumerate(sorted(tests, key=lambda key: tests[key])):
        largest = max(largest, tests[key] * (len(tests) - place))
        corrected[key] = tests[key], largest
    return corrected


def shown(file: str, who: str | tuple, part: Part) -> str:
    """Return a mean, or for a pair the difference ± its standard error and sign, as printed."""
    measure, form, where = part
    if is_pair := isinstance(who, tuple):
        values, places = paired(file, who, measure, where), {"0"}
    else:
        own = found(file, who, measure, where)
        places = {seed for seed, _ in own}
        values = [*own.values()] if measure == "train_seconds" else by_seed(own)
    if not values:
        return "-"
    values = [value * (100 if measure == "parts_off" else 1) for value in values]
    middle, count, kind = mean(values), len(values), form.rstrip("±")
    kind = kind.replace("fid", ".1f" if abs(middle) < 99.95 else ".0f")
    text = f"{middle:{'+' if is_pair else ''}{kind}}" if kind else ""
    has_spread = is_pair or "±" in form or (who == "floor" and len(places) == 1)
    if count > 1 and kind and has_spread:
        text += f" ± {stdev(values) / (count**0.5 if is_pair else 1):{kind}}"
    if is_pair and file in PAIRS:
        family = p_values(file, where["target"] if file == "points" else None)
        target = where.get("target") or lines_of(file)[0]["target"]
        p, corrected = family[who, measure, target, str(where["nfe"])]
        sign = "+" if (middle > 0) == measure.endswith(("precision", "recall")) else "-"
        text += " " + (sign if corrected < 0.05 else f"({sign})" if p < 0.05 else "=")
    return text.strip()


def plain(text: str) -> str:
    """Return text without marks, separators of thousands and zeros before the point."""
    return re.sub(r"(?<!\d)0(?=\.\d)|(?<=\d),(?=\d{3})|\*\*", "", text.replace("\u2212", "-"))


def method_of(label: str) -> str:
    label = label.replace("NSGF++, hand-over", "NSGF++: hand-over").removeprefix("FID of ")
    name = re.split(r", | \(", label)[0]
    return METHODS.get(name, name.lower().replace("-", "").replace(" ", ""))


def check(
    head: str,
    file: str,
    columns: list[list[Part]],
    join: str = "; ",
    against: str = "",
    page: str = "docs/results.md",
    files: dict[str, str] | None = None,
    **where: object,
) -> None:
    """Compare each cell of the table that begins with ``head``; an empty one is no claim.

    A row is a method of ``file``, or of one in ``files``, or a pair: A minus B, or ``against``.
    """
    text = plain((ROOT / page).read_text()).partition(f"\n| {plain(head)}")[2]
    lines = re.sub(r"\((\d+)\)", r"\1", text.partition("\n\n")[0]).split("\n")[2:]
    first, wrong = "", []
    assert lines, head
    for label, *cells in (re.split(r" *\| *", line.strip("| ")) for line in lines):
        names = {plain(line["method"]): line["method"] for line in lines_of(file)}
        who: str | tuple = names.get(label) or method_of(label)
        own = (files or {}).get(who, file)
        if against and " itself" not in label:
            who = (against, who) if against == "nsgf" else (who, against)
        elif "minus " in label:
            one, _, other = label.rpartition("minus ")
            first = method_of(one.strip()) if one else first
            who = (first, method_of(other))
        who = against if " itself" in label else who
        for place, (cell, parts) in enumerate(zip(cells, columns, strict=False)):
            kept = parts[:1] if isinstance(who, tuple) and head.startswith("FID") else parts
            only = where if own != "2d" or file == "2d" else where | {"seed": 0}
            texts = [shown(own, who, (name, form, only | at)) for name, form, at in kept]
            alike = len({*texts}) == 1 and (who == "floor" or texts[0] == "-")
            expected = plain(texts[0] if alike else join.join(texts))
            if cell not in ("", "not run", expected):
                wrong.append(f"{label}, column {place + 1}: {cell}, measured {expected}")
    assert not wrong, "\n".join([head, *wrong])


def each(forms: dict[str, str], *calls: int) -> list[list[Part]]:
    return [[(name, form, {"nfe": nfe}) for name, form in forms.items()] for nfe in calls]


TIME, CALLS = [("train_seconds", ".0f", {})], [("calls", ".0f", {"nfe": 1})]
W2 = [[("w2", ".3f", {"target": x, "nfe": n}) for n in (10, 100)] for x in SETS]
ENERGY = [[("1000 energy", ".2f±", {"target": x, "nfe": n}) for n in (10, 100)] for x in SETS]
SIGNS = [
    [(m, "", at) for m, _, at in [*w2, *energy]] for w2, energy in zip(W2, ENERGY, strict=True)
]
STEPS = [[(m, ".3f±", at)] for m, _, at in W2[0]] + [ENERGY[0][1:]]
STEPS += [[(m, ".3f±", at)] for m, _, at in W2[2]] + [ENERGY[2][1:]]
ABLATION = [[part] for column in (W2[1], W2[3]) for part in column]
ONE_CALL = [CALLS, *([("w2", ".3f", {"target": x, "nfe": 1})] for x in SETS), TIME]
SHORT = [[("updates", ".0f", {"nfe": 1})], *([part] for part in each(FID, 1)[0]), TIME]
POINTS = each({"energy": ".1f±"}, 2, 3, 5, 10, 100)
POINTS += each({"w2": ".2f±"}, 10) + each({"parts_off": ".1f±"}, 10)
FRECHET = [*each({"imagenet_frechet": ".1f±"}, 1, 2, 3, 5, 10, 20), TIME]
KID = each({name: form for name, form in DIGITS.items() if "frechet" not in name}, 2, 3, 5, 10, 20)
PAIRED = each({"imagenet_frechet": ".1f"}, 2, 3, 5, 10)
PAIRED += each({"imagenet_precision": ".3f"}, 3, 10) + each({"imagenet_recall": ".3f"}, 3, 10)
README = [[part] for part in each(DIGITS, 10)[0]]
GENERATOR = [CALLS, *([(m, form + "±", at)] for m, form, at in each(DIGITS, 1)[0]), TIME]
SHIPPED = [
    [("calls", ".0f", {})],
    *([(m, form, {})] for m, form in (DIGITS | {"w2": ".3f"}).items()),
]
SHARED = {"files": dict.fromkeys(("affine", "otcfm+", "otcfm"), "digits")}
PLUS = {"join": " / ", "files": {"nsgf": "2d", "otcfm": "2d"}}
CLASSIFIER = each(FID, 2, 3, 5, 10, 20)
OLDER = [*each({"classifier_fid": "fid"}, 1, 2, 3, 4, 5, 10, 20, 60), TIME]
TABLES = [
    ("W2 at 10 / 100 calls | 8gaussians", "2d", [*W2, TIME], {"join": " / "}),
    ("NSGF against", "2d", SIGNS, {"join": " ", "against": "nsgf"}),
    ("W2 at 10 / 100 calls, seed 0", "2d_plus", W2, PLUS),
    ("1000 x energy distance at", "points", POINTS, {"target": "mixture-8"}),
    ("pinwheel, 1000 x energy", "points", POINTS, {"target": "pinwheel"}),
    ("32 dimensions, 1000 x energy", "points", POINTS, {"target": "mixture-32"}),
    ("W2 | moons, 10 calls", "ablations_2d", ABLATION, {}),
    ("minus configs/2d.yaml", "ablations_2d_steps", STEPS, {"against": "configs/2d.yaml"}),
    ("Fréchet distance at | 1 call", "digits", FRECHET, {}),
    ("1000 x KID; precision; recall at", "digits", KID, {}),
    ("paired over seeds", "digits", PAIRED, {}),
    ("| Fréchet distance", "digits", README, {"page": "README.md"}),
    ("FID, precision, recall | 2", "mnist_starts", [*CLASSIFIER, TIME], {"join": ", "}),
    ("6,000 updates, seed 0", "mnist_affine", CLASSIFIER + each(FID, 60), {"join": ", "}),
    ("classifier FID at", "mnist", OLDER, {}),
    ("FID, precision, recall on CIFAR", "cifar10", [*CLASSIFIER, TIME], {"join": ", "}),
    ("digits, seeds 0 to 4", "digits_onecall", GENERATOR, SHARED),
    ("W2, seed 0 | calls", "2d_onecall", ONE_CALL, {}),
    ("MNIST, one call", "mnist_onecall", SHORT, {}),
    ("name | calls | Fréchet", "shipped", SHIPPED, {}),
]


@pytest.mark.parametrize(("head", "file", "columns", "how"), TABLES, ids=lambda x: str(x)[:25])
def test_table(head, file, columns, how):
    check(head, file, columns, **how)


def test_table_of_known_shares():
    text = plain((ROOT / "docs/results.md").read_text())
    rows = re.findall(r"^\| (digits|MNIST)" + r" \| ([\d.]+)" * 5 + r" \|$", text, re.M)
    with (ROOT / "docs/results/target_r2.csv").open() as stream:
        lines = {tuple(line[:3]): [*map(float, line[3:6])] for line in [*csv.reader(stream)][1:]}
    assert len(rows) == 17
    for name, n, m, *texts in rows:
        r_squared, known, seconds = lines[name.lower(), n, m]
        assert [*map(float, texts)] == [
            *(float(f"{share:.2f}") for share in (r_squared, known)),
            float(f"{seconds:.3g}"),
        ]


def test_figures_in_sentences():
    def points(who, nfe=10, measure="energy", form=".1f", target="mixture-8"):
        return shown("points", who, (measure, form, {"target": target, "nfe": nfe}))

    def minus(*others, **how):
        return [points(("nsgf++h", other), **how) for other in others]

    def digits(who, nfe, file="digits"):
        kept = [each(DIGITS, nfe)[0][place] for place in (0, 2)]
        return " / ".join(shown(file, who, part) for part in kept)

    own = [
        p for key, (p, _) in p_values("2d", None).items() if key[0][1] == "otcfm" and key[1] == "w2"
    ]
    assert sum(p * (len(own) - place) < 0.05 for place, p in enumerate(sorted(own))) == 4
    families = {"2d": None, "digits": None, "mnist_starts": None, "points": "mixture-8"}
    assert [len(p_values(*family)) for family in families.items()] == [100, 80, 72, 105]
    said = [
        ("README.md", "{} for the hand-over, {} for `affine` and {} for OT-CFM with as many pairs"),
        (
            "README.md",
            "have a distance of {} and a precision of {} at 10 calls, real images {} and {}",
        ),
        ("docs/one-call.md", "{} at 1 call | {} at 5, {} at 10"),
        ("docs/results.md", "{}, minus Affine {}, OT-CFM+ {}, OT-CFM {}, I-CFM {}, NSGF++ {};"),
        ("docs/results.md", "at 5 calls minus Affine {}, as"),
        ("docs/results.md", "Affine is {}, minus OT-CFM+ {}, minus OT-CFM {}, minus NSGF {}; W2"),
        ("docs/results.md", "W2 minus NSGF {}."),
        ("docs/results.md", "+ and NSGF++h: {}, {}, {}."),
    ]
    measured = [
        [*map(points, ("nsgf++h", "affine", "otcfm+"))],
        [
            shown("shipped", who, (f"imagenet_{name}", form, {}))
            for who, digit in (("mnist", 0), ("real images of MNIST", 1))
            for name, form in (("frechet", f".{digit}f"), ("precision", ".2f"))
        ],
        [digits("onecall", 1, "digits_onecall"), digits("nsgf++h", 5), digits("nsgf++h", 10)],
        minus("nsgf", "affine", "otcfm+", "otcfm", "icfm", "nsgf++"),
        minus("affine", nfe=5),
        minus("affine", "otcfm+", "otcfm", "nsgf", target="pinwheel"),
        minus("nsgf", measure="w2", form=".3f", target="pinwheel"),
        [shown("mnist_starts", "floor", part) for part in each(FID, 10)[0]],
    ]
    for (page, sentence), values in zip(said, measured, strict=True):
        text = " ".join(plain((ROOT / page).read_text()).split())
        assert plain(sentence.format(*values)) in text
