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
METHODS = {"real images": "floor", "other points": "floor", "the same": "affine-fp32"}
METHODS |= {"NSGF++: hand-over": "nsgf++h", "NSGF++h: `evaluate --pretrained mnist`": "nsgf++h"}
METHODS |= {"straight flow after a linear map of the noise": "affine"}
METHODS |= {"OT-CFM with the hand-over's pairs": "otcfm+"}
PAIRS = {
    "2d": [("nsgf", other) for other in ("otcfm", "sbcfm", "icfm", "1rf", "2rf")],
    "digits": [("affine", "nsgf++h"), ("affine", "otcfm+")],
    "mnist_starts": [("affine", other) for other in ("otcfm+", "otcfm", "nsgf++h", "nsgf++")],
    "points": [("nsgf++h", x) for x in ("nsgf", "affine", "otcfm+", "otcfm", "icfm", "nsgf++")],
}
"""By file, the pairs whose tests are one family, by all measures and calls (and targets of 2d)."""
PAIRS["digits"] += [("nsgf++h", "otcfm+"), ("nsgf++h", "nsgf++")]
PAIRS["mnist_starts"] += [("nsgf++h", "otcfm+")]
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
    cells = {cell for cell in cells if target in (None, cell[0])}
    tests, corrected, largest = {}, {}, 0.0
    for pair, measure in ((pair, measure) for pair in PAIRS[file] for measure in MEASURES):
        for place, nfe in cells:
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


W2 = [[("w2", ".3f", {"target": x, "nfe": n}) for n in (10, 100)] for x in SETS]
SIGNS = [
    [(name, "", {"target": x, "nfe": n}) for name in ("w2", "1000 energy") for n in (10, 100)]
    for x in SETS
]
STEPS = [
    [(name, form, {"target": x, "nfe": nfe})]
    for x in ("8gaussians", "scurve")
    for name, form, nfe in (("w2", ".3f±", 10), ("w2", ".3f±", 100), ("1000 energy", ".2f±", 100))
]
ABLATION = [[("w2", ".3f", {"target": x, "nfe": n})] for x in SETS[1:4:2] for n in (10, 100)]
CALLS, TIME = [[("calls", ".0f", {"nfe": 1})]], [[("train_seconds", ".0f", {})]]
ONE_CALL = CALLS + [[("w2", ".3f", {"target": x, "nfe": 1})] for x in SETS] + TIME
SHORT = [[("updates", ".0f", {"nfe": 1})], *([part] for part in each(FID, 1)[0]), *TIME]
RIVALS = {"affine": "digits", "otcfm+": "digits", "otcfm": "digits"}
POINTS = each({"energy": ".1f±"}, 2, 3, 5, 10, 100)
POINTS += each({"w2": ".2f±"}, 10) + each({"parts_off": ".1f±"}, 10)
FRECHET = each({"imagenet_frechet": ".1f±"}, 1, 2, 3, 5, 10, 20) + TIME
KID = each(dict([*DIGITS.items()][1:]), 2, 3, 5, 10, 20)
PAIRED = each({"imagenet_frechet": ".1f"}, 2, 3, 5, 10)
PAIRED += each({"imagenet_precision": ".3f"}, 3, 10) + each({"imagenet_recall": ".3f"}, 3, 10)
README = [[(name, form, {"nfe": 10})] for name, form in DIGITS.items()]
GENERATOR = CALLS + [[(name, form + "±", {"nfe": 1})] for name, form in DIGITS.items()] + TIME
PLUS = {"nsgf": "2d", "otcfm": "2d"}
OLDER = each({"classifier_fid": "fid"}, 1, 2, 3, 4, 5, 10, 20, 60) + TIME
TABLES = [
    ("W2 at 10 / 100 calls | 8gaussians", "2d", W2 + TIME, {"join": " / "}),
    ("NSGF against", "2d", SIGNS, {"join": " ", "against": "nsgf"}),
    ("W2 at 10 / 100 calls, seed 0", "2d_plus", W2, {"join": " / ", "files": PLUS}),
    ("1000 x energy distance at", "points", POINTS, {"target": "mixture-8"}),
    ("pinwheel, 1000 x energy", "points", POINTS, {"target": "pinwheel"}),
    ("W2 | moons, 10 calls", "ablations_2d", ABLATION, {}),
    ("minus configs/2d.yaml", "ablations_2d_steps", STEPS, {"against": "configs/2d.yaml"}),
    ("Fréchet distance at | 1 call", "digits", FRECHET, {}),
    ("1000 x KID; precision; recall at", "digits", KID, {}),
    ("paired over seeds", "digits", PAIRED, {}),
    ("| Fréchet distance", "digits", README, {"page": "README.md"}),
    (
        "FID, precision, recall | 2 calls",
        "mnist_starts",
        each(FID, 2, 3, 5, 10, 20) + TIME,
        {"join": ", "},
    ),
    ("6,000 updates, seed 0", "mnist_affine", each(FID, 2, 3, 5, 10, 20, 60), {"join": ", "}),
    ("classifier FID at", "mnist", OLDER, {}),
    (
        "FID, precision, recall on CIFAR",
        "cifar10",
        each(FID, 2, 3, 5, 10, 20) + TIME,
        {"join": ", "},
    ),
    ("digits, seeds 0 to 4", "digits_onecall", GENERATOR, {"files": RIVALS}),
    ("W2, seed 0 | calls", "2d_onecall", ONE_CALL, {}),
    ("MNIST, one call", "mnist_onecall", SHORT, {}),
]


@pytest.mark.parametrize(("head", "file", "columns", "how"), TABLES, ids=lambda x: str(x)[:25])
def test_table(head, file, columns, how):
    check(head, file, columns, **how)


def test_table_of_known_shares():
    text = plain((ROOT / "docs/results.md").read_text())
    with (ROOT / "docs/results/target_r2.csv").open() as stream:
        measured = [
            (
                line["data"],
                *map(float, (line["n"], line["m"], f"{r:.2f}", f"{known:.2f}", f"{s:.3g}")),
            )
            for line in csv.DictReader(stream)
            for r, known, s in [[*map(float, [*line.values()][3:6])]]
        ]
    rows = re.findall(r"^\| (digits|MNIST)" + r" \| ([\d.]+)" * 5 + r" \|$", text, re.M)
    assert len(rows) == 17
    assert not {(row[0].lower(), *map(float, row[1:])) for row in rows} - {*measured}


def test_figures_in_sentences():
    def points(who, nfe=10, measure="energy", form=".1f", target="mixture-8"):
        return shown("points", who, (measure, form, {"target": target, "nfe": nfe}))

    def minus(*others, **how):
        return [points(("nsgf++h", other), **how) for other in others]

    def digits(who, nfe, file="digits"):
        parts = (
            ("imagenet_frechet", ".1f", {"nfe": nfe}),
            ("imagenet_precision", ".3f", {"nfe": nfe}),
        )
        return " / ".join(shown(file, who, part) for part in parts)

    pinwheel = {"target": "pinwheel"}
    tests = {key: p for key, (p, _) in p_values("2d", None).items()}
    own = sorted(tests[key] for key in tests if key[:2] == (("nsgf", "otcfm"), "w2"))
    stay = sum(p * (len(own) - place) < 0.05 for place, p in enumerate(own))
    said = {
        "README.md": [
            "{} for the hand-over, {} for `affine` and {} for OT-CFM with as many pairs. Held-out "
            "points have {}.".format(*map(points, ("nsgf++h", "affine", "otcfm+", "floor"))),
            f"in {('four', stay)[stay != 4]} of ten tests after Holm's correction",
        ],
        "docs/one-call.md": [
            f"{digits('onecall', 1, 'digits_onecall')} at 1 call | {digits('nsgf++h', 5)} at 5, "
            f"{digits('nsgf++h', 10)} at 10"
        ],
        "docs/results.md": [
            "minus NSGF is {}, minus Affine {}, OT-CFM+ {}, OT-CFM {}, I-CFM {}, NSGF++ {};".format(
                *minus("nsgf", "affine", "otcfm+", "otcfm", "icfm", "nsgf++")
            ),
            "at 5 calls minus Affine {}, as at 2 and 3.".format(*minus("affine", nfe=5)),
            "minus Affine is {}, minus OT-CFM+ {}, minus OT-CFM {}, minus NSGF {};".format(
                *minus("affine", "otcfm+", "otcfm", "nsgf", **pinwheel)
            ),
            "W2 minus NSGF {}.".format(*minus("nsgf", measure="w2", form=".3f", **pinwheel)),
            f"{len(p_values('points', 'mixture-8'))} tests of six pairs",
            f"{len(p_values('digits', None))} tests of these four pairs",
            f"{len(p_values('mnist_starts', None))} tests of five pairs",
            f"Over all {len(tests)} tests below",
            "+ and NSGF++h: {}, {}, {}.".format(
                *(f"{shown('mnist_starts', 'floor', (name, FID[name], {}))}" for name in FID)
            ),
        ],
    }
    for page, texts in said.items():
        content = " ".join(plain((ROOT / page).read_text()).split())
        assert not [text for text in texts if plain(text) not in content]
