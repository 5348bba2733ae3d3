"""The tables of docs/results.md and README.md follow from the measures in docs/results."""

import csv
import re
from functools import cache
from math import inf
from pathlib import Path
from statistics import mean, median, stdev

import pytest
from scipy.stats import t as student_t

from nsgf.comparison.tables import by_seed

ROOT = Path(__file__).parents[1]
SETS = ("8gaussians", "moons", "scurve", "checkerboard", "8gaussians_moons")
DIGITS = {"imagenet_frechet": ".1f", "1000 imagenet_kid": ".1f"}
DIGITS |= {"imagenet_precision": ".3f", "imagenet_recall": ".3f"}
MEASURES = (*DIGITS, "w2", "1000 energy", "energy", "parts_off", "nearness", "copies")
METHODS = {
    "real images": "floor",
    "other points": "floor",
    "real data": "floor",
    "NSGF++ of the paper": "nsgf++",
    "linear map": "affine",
    "OT-CFM with as many pairs": "otcfm+",
}
PAIRS = {
    "2d": "nsgf-otcfm nsgf-sbcfm nsgf-icfm nsgf-1rf nsgf-2rf",
    "digits": "affine-nsgf++h affine-otcfm+ nsgf++h-otcfm+ nsgf++h-nsgf++",
    "points": "nsgf++h-affine nsgf++h-otcfm+ nsgf-affine nsgf-otcfm+",
}
"""By file, the pairs whose tests are one family, by all targets, measures and calls."""
ONLY = {"points": ({"energy"}, {"3", "10"})}
"""By file, measures and calls of the family, where it has not all of them."""
Part = tuple[str, str, dict[str, object]]
"""Measure, format (±: with deviation) and lines of the file."""


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
    values = {key: one[key] - other[key] for key in kept}
    return by_seed(values) if file in PAIRS else [*values.values()]


@cache
def p_values(file: str) -> dict[tuple, tuple[float, float]]:
    """Return p of each paired t test, before and after Holm's correction over the family."""
    cells = {(line["target"], line["nfe"]) for line in lines_of(file) if line["nfe"]}
    tests, corrected, largest = {}, {}, 0.0
    pairs = [tuple(pair.split("-")) for pair in PAIRS[file].split()]
    measures, calls = ONLY.get(file, (MEASURES, {nfe for _, nfe in cells}))
    for pair, measure in ((pair, measure) for pair in pairs for measure in measures):
        for place, nfe in (cell for cell in cells if cell[1] in calls):
            values = paired(file, pair, measure, {"target": place, "nfe": nfe})
            if len(values) > 2:
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
    values = [value * (100 if measure in ("parts_off", "copies") else 1) for value in values]
    middle, count, kind = mean(values), len(values), form.rstrip("±")
    text = f"{middle:{'+' if is_pair else ''}{kind}}" if kind else ""
    has_spread = is_pair or "±" in form or (who == "floor" and len(places) == 1)
    if count > 1 and kind and has_spread:
        text += f" ± {stdev(values) / (count**0.5 if is_pair else 1):{kind}}"
    if is_pair and file in PAIRS:
        target = where.get("target") or lines_of(file)[0]["target"]
        p, corrected = p_values(file)[who, measure, target, str(where["nfe"])]
        sign = "+" if (middle > 0) == measure.endswith(("precision", "recall")) else "-"
        text += " " + (sign if corrected < 0.05 else f"({sign})" if p < 0.05 else "=")
    return text.strip()


def plain(text: str) -> str:
    """Return text without marks, separators of thousands and zeros before the point."""
    return re.sub(r"(?<!\d)0(?=\.\d)|(?<=\d),(?=\d{3})|\*\*", "", text.replace("\u2212", "-"))


def method_of(label: str) -> str:
    name = re.split(r", | \(", label)[0]
    return METHODS.get(name, name.lower().replace("-", "").replace(" ", ""))


def joined(who: str | tuple, texts: list[str], join: str) -> str:
    """Return the texts of a cell; a floor that is the same at all calls, or no measure, is one."""
    is_one = len({*texts}) == 1 and (who == "floor" or texts[0] == "-")
    return texts[0] if is_one else join.join(texts)


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
            only = where if own != "2d" or file == "2d" else where | {"seed": 0}
            texts = [shown(own, who, (name, form, only | at)) for name, form, at in parts]
            expected = plain(joined(who, texts, join))
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
ABLATION = [[part] for column in (W2[1], W2[3]) for part in column]
ONE_CALL = [CALLS, *([("w2", ".3f", {"target": x, "nfe": 1})] for x in SETS), TIME]
PLACES = ("mixture-2", "mixture-8", "mixture-32", "pinwheel", "spirals", "roll", "tree", "mnist-16")
LEADS = [[("energy", "", {"target": x, "nfe": n}) for n in (3, 10)] for x in PLACES]
BOTH = [("energy", ".1f±", 3), ("energy", ".1f±", 10)]
BY_SET = {
    "1000 x energy distance at 3 / 10 calls": ("points", BOTH),
}
"""Tables with a set of points in each row: the file, and measure, format and calls in a cell."""
FRECHET = [*each({"imagenet_frechet": ".1f±"}, 1, 2, 3, 5, 10, 20), TIME]
KID = each({name: form for name, form in DIGITS.items() if "frechet" not in name}, 2, 3, 5, 10, 20)
QUALITY = each({name: form for name, form in DIGITS.items() if "kid" not in name}, 3, 5, 10, 20)
PAIRED = each({"imagenet_frechet": ".1f"}, 2, 3, 5, 10)
PAIRED += each({"imagenet_precision": ".3f"}, 3, 10) + each({"imagenet_recall": ".3f"}, 3, 10)
GENERATOR = [CALLS, *([(m, form + "±", at)] for m, form, at in each(DIGITS, 1)[0]), TIME]
SHIPPED = [
    [("calls", ".0f", {})],
    *([(m, form, {})] for m, form in (DIGITS | {"w2": ".3f"}).items()),
]
SHARED = {"files": dict.fromkeys(("affine", "otcfm+", "otcfm"), "digits")}
PLUS = {"join": " / ", "files": {"nsgf": "2d", "otcfm": "2d"}}
TABLES = [
    ("W2 at 10 / 100 calls | 8gaussians", "2d", [*W2, TIME], {"join": " / "}),
    ("NSGF against", "2d", SIGNS, {"join": " ", "against": "nsgf"}),
    ("W2 at 10 / 100 calls, seed 0", "2d_plus", W2, PLUS),
    ("at 3 and 10 calls", "points", LEADS, {"join": " "}),
    ("W2 | moons, 10 calls", "ablations_2d", ABLATION, {}),
    ("Fréchet distance at | 1 call", "digits", FRECHET, {}),
    ("1000 x KID; precision; recall at", "digits", KID, {}),
    ("paired over seeds", "digits", PAIRED, {}),
    ("MNIST: Fréchet distance; precision", "mnist", QUALITY, {}),
    ("digits, seeds 0 to 4", "digits_onecall", GENERATOR, SHARED),
    ("W2, seed 0 | calls", "2d_onecall", ONE_CALL, {}),
    ("name | calls | Fréchet", "shipped", SHIPPED, {}),
]


@pytest.mark.parametrize(("head", "file", "columns", "how"), TABLES, ids=lambda x: str(x)[:25])
def test_table(head, file, columns, how):
    check(head, file, columns, **how)


def rows_of(page: str, head: str) -> list[list[str]]:
    """Return the cells of a table, row by row, without its head."""
    text = plain((ROOT / page).read_text()).partition(f"\n| {plain(head)}")[2].partition("\n\n")[0]
    return [re.split(r" *\| *", line.strip("| ")) for line in text.split("\n")[2:]]


def lines_from(file: str) -> list[dict[str, str]]:
    with (ROOT / f"docs/results/{file}.csv").open() as stream:
        return [*csv.DictReader(stream)]


@pytest.mark.parametrize("head", BY_SET)
def test_table_of_points(head):
    top, _, *lines = (
        (ROOT / "docs/results.md")
        .read_text()
        .partition(f"| {head}")[2]
        .partition("\n\n")[0]
        .split("\n")
    )
    _, *methods = re.split(r" *\| *", top.removesuffix(" |"))
    (file, parts), rows = BY_SET[head], rows_of("docs/results.md", head)
    for line, (place, *cells) in zip(lines, rows, strict=True):
        for name, form, nfe in parts if "**" in line else ():
            at = {"target": place, "nfe": nfe}
            means = {
                who: mean(found(file, who, name, at).values()) for who in map(method_of, methods)
            }
            best = min(means.keys() - {"floor"}, key=lambda who: means[who])
            assert f"**{shown(file, best, (name, form, at))}**" in line, (place, name)
        for method, cell in zip(map(method_of, methods), cells, strict=True):
            ats = [(name, form, {"target": place, "nfe": nfe}) for name, form, nfe in parts]
            assert cell == plain(joined(method, [shown(file, method, at) for at in ats], " / "))
    assert rows


def test_table_of_solvers():
    """A rival's time is that of its fastest setting that is at least as exact as ours."""
    times: dict[tuple, dict[str, list[float]]] = {}
    lines = lines_from("solver_work_precision")
    limits = {
        line["case"]: float(line["largest_error"]) for line in lines if line["solver"] == "nsgf"
    }
    for line in lines:
        if float(line["largest_error"]) <= limits[line["case"]]:
            key = line["case"], line["problems"], line["solver"]
            times.setdefault(key, {}).setdefault(line["setting"], []).append(
                float(line["processor_ms"])
            )
    least = {key: min(map(median, found.values())) for key, found in times.items()}
    ratios = {key: least[key] / least[(*key[:2], "nsgf")] for key in least if key[2] != "nsgf"}
    for case, (_, own, error, _, *cells) in zip(
        limits, rows_of("docs/sinkhorn.md", "N x M x D, blur"), strict=True
    ):
        texts = [f"{least[case, n, 'nsgf']:.1f}" for n in "18"]
        assert (own, error) == (plain(" / ".join(texts)), plain(f"{limits[case]:.2%}"[:-1]) + " %")
        for solver, cell in zip(("POT", "ott-jax", "mdot-tnt"), cells, strict=True):
            found = [f"{ratios.get((case, n, solver), inf):.1f}" for n in "18"]
            assert cell == plain(" / ".join(found)).replace("inf / inf", "not reached"), case
    best = {n: [min(r for k, r in ratios.items() if k[:2] == (c, n)) for c in limits] for n in "18"}
    said = "takes {} to {} times as long; with one problem a call, {} to {} times."
    said = said.format(*(f"{f(best[n]):.{f(best[n]) < 9.95:d}f}" for n in "81" for f in (min, max)))
    assert plain(said) in " ".join(plain((ROOT / "docs/sinkhorn.md").read_text()).split())
    assert min(best["8"]) >= 2, "README: at most half the time"
    faster = {key[0] for key, ratio in ratios.items() if key[1] == "1" and ratio < 1}
    assert len(faster) == 1, "README: faster on one of six shapes"


def test_table_of_pictures():
    for place, name in ((1, "digits"), (2, "mnist")):
        rows = rows_of("docs/evaluation.md", "Fréchet distance, 1000 x KID, precision, recall of")
        lines = {
            line["pictures"]: line
            for line in lines_from("pictures")
            if line["side"] == "112" and line["scaling"] == "bicubic" and line["set"] == name
        }
        assert len(rows) == len(lines) == 9
        for cells in rows:
            values = [float(lines[cells[0]][measure]) for measure in DIGITS]
            forms = (".0f", ".0f", ".2f", ".2f")
            texts = [f"{value:{form}}" for value, form in zip(values, forms, strict=True)]
            assert cells[place] == plain(", ".join(texts)).replace("-0,", "0,")


def test_table_of_known_shares():
    rows = rows_of("docs/results.md", "data | n | m")
    lines = {
        tuple(cells[:3]): [*map(float, cells[3:6])]
        for cells in (list(line.values()) for line in lines_from("target_r2"))
    }
    assert len(rows) == 17
    for name, n, m, *texts in rows:
        r_squared, known, seconds = lines[name.lower(), n, m]
        assert [*map(float, texts)] == [
            *(float(f"{share:.2f}") for share in (r_squared, known)),
            float(f"{seconds:.3g}"),
        ]


def test_figures_in_sentences():
    def digits(who, nfe, file="digits"):
        kept = [each(DIGITS, nfe)[0][place] for place in (0, 2)]
        return " / ".join(shown(file, who, part) for part in kept)

    own = [p for key, (p, _) in p_values("2d").items() if key[0][1] == "otcfm" and key[1] == "w2"]
    assert sum(p * (len(own) - place) < 0.05 for place, p in enumerate(sorted(own))) == 4
    assert [len(p_values(file)) for file in PAIRS] == [100, 80, 64]

    def energy(who, place, nfe):
        return mean(found("points", who, "energy", {"target": place, "nfe": nfe}).values())

    ahead = {
        (who, nfe): sum(energy(who, x, nfe) < energy("otcfm+", x, nfe) for x in PLACES)
        for who in ("nsgf++h", "nsgf")
        for nfe in (3, 10)
    }
    words = {key: {7: "seven", 8: "eight"}[count] for key, count in ahead.items()}
    assert words["nsgf++h", 3] == words["nsgf", 3]
    said = [
        ("docs/one-call.md", "{} at 1 call | {} at 5, {} at 10"),
        (
            "docs/results.md",
            "on {} of eight sets (sign test: p = 0.008), and NSGF on {}. At 3 calls",
        ),
        ("docs/results.md", "At 3 calls both have it on {}."),
        ("README.md", "NSGF++h leads on [{} of eight sets]"),
    ]
    measured = [
        [digits("onecall", 1, "digits_onecall"), digits("nsgf++h", 5), digits("nsgf++h", 10)],
        [words["nsgf++h", 10], words["nsgf", 10]],
        [words["nsgf", 3]],
        [words["nsgf++h", 10]],
    ]
    for (page, sentence), values in zip(said, measured, strict=True):
        text = " ".join(plain((ROOT / page).read_text()).split())
        assert plain(sentence.format(*values)) in text


def test_table_of_the_readme():
    columns = {
        "points": ("energy", ".1f", {"target": "mixture-8", "nfe": 10}),
        "digits": ("imagenet_frechet", ".1f", {"nfe": 10}),
    }
    for label, *cells in rows_of("README.md", "10 network calls"):
        who = method_of(label)
        for cell, (file, part) in zip(cells, columns.items(), strict=False):
            assert cell in ("", plain(shown(file, who, part).partition(" ")[0])), (label, file)
