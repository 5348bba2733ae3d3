import functools
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from nsgf.plots import samples as plots
from nsgf.plots.samples import (
    COLUMNS,
    _chosen,
    save_grid,
    save_image_table,
    save_image_way,
    save_point_table,
    save_points,
)
from nsgf.sampling.sampler import Samples


def pixels(file) -> np.ndarray:
    return np.asarray(Image.open(file)).astype(int)


def test_grid_keeps_order_and_full_contrast(tmp_path):
    images = torch.stack([torch.full((1, 8, 8), v) for v in (-1.0, 0.0, 1.0, 3.0)])
    save_grid(images, tmp_path / "g.png")
    grid = pixels(tmp_path / "g.png")
    height, width, _ = grid.shape
    quarters = [grid[r * height // 4, c * width // 4, 0] for r in (1, 3) for c in (1, 3)]
    assert quarters[0] == 0
    assert 126 <= quarters[1] <= 128
    assert quarters[2:] == [255, 255]
    assert width >= 300


def shown_way(file, nsgf: int, straight: int, **options) -> np.ndarray:
    """Ten samples that are black at the start, grey after NSGF steps, white on the straight flow.
    RGB, (height, width, 3)"""
    values = [-1.0] + [0.0] * nsgf + [1.0] * straight
    marks = [f"v {step}/{nsgf}" for step in range(1, nsgf + 1)]
    marks += [f"u {step}/{straight}" for step in range(1, straight + 1)]
    path = [torch.full((10, 3, 32, 32), value) for value in values]
    save_image_way(Samples(path[-1], 0.0, path=path, marks=["start", *marks]), file, **options)
    return pixels(file)[..., :3]


def test_image_way_has_a_row_for_each_sample_and_a_column_for_each_state(tmp_path):
    picture = shown_way(tmp_path / "w.png", 2, 3, rows=2)
    black, grey = ((abs(picture - value) <= 2).all(2) for value in (0, 128))
    columns = grey.mean(0) > 0.5
    assert abs(columns.sum() - 2 * (black.mean(0) > 0.5).sum()) <= 4
    assert np.flatnonzero(columns)[0] > np.flatnonzero(black.mean(0) > 0.5)[-1]
    rows = grey.mean(1) > 0.2
    assert (np.diff(rows.astype(int)) == 1).sum() == 2


def test_line_stands_where_the_straight_flow_begins(tmp_path):
    picture = shown_way(tmp_path / "w.png", 2, 3, rows=2)
    red = (picture == (214, 39, 40)).all(2).mean(0) > 0.5
    grey = (abs(picture - 128) <= 2).all(2).mean(0) > 0.5
    assert red.any()
    assert 0 <= np.flatnonzero(red)[0] - np.flatnonzero(grey)[-1] < 6
    alone = shown_way(tmp_path / "u.png", 0, 3)
    assert not (alone == (214, 39, 40)).all(2).any()


@pytest.mark.parametrize(("nsgf", "straight"), [(5, 54), (2, 10), (100, 0), (0, 100)])
def test_of_a_long_way_some_states_are_shown(nsgf, straight):
    marks = ["start", *(f"v {n}" for n in range(nsgf)), *(f"u {n}" for n in range(straight))]
    chosen = _chosen(marks)
    assert len(chosen) <= COLUMNS
    assert len(chosen) > 0.6 * min(COLUMNS, len(marks))
    assert chosen == sorted(set(chosen))
    assert {0, len(marks) - 1} <= set(chosen)
    if nsgf < COLUMNS:
        assert set(range(nsgf + 1)) <= set(chosen)
    later = np.diff(chosen[nsgf + 1 if straight else 1 :])
    assert len(set(later.tolist())) <= 1


def test_point_path_is_drawn(tmp_path):
    start = torch.randn(50, 2)
    save_points([start, start + 3], torch.randn(60, 2), tmp_path / "s.png", "title")
    picture = pixels(tmp_path / "s.png")
    assert picture.shape[1] > 1000
    assert (picture[..., :3].reshape(-1, 3) != 255).any(1).mean() > 0.01


def test_scatter_has_samples_left_and_target_right_on_the_same_axes(tmp_path):
    """Red samples around (0, 0) and green ones around (3, 3): centre, then up and right of it."""
    save_points([0.1 * torch.randn(80, 2)], 3 + 0.1 * torch.randn(80, 2), tmp_path / "s.png", "t")
    picture = pixels(tmp_path / "s.png")[..., :3]
    red = (picture == (214, 39, 40)).all(-1)
    green = (picture == (44, 160, 44)).all(-1)
    half = picture.shape[1] // 2
    assert red[:, :half].sum() > 50 < green[:, half:].sum()
    assert red[:, half:].sum() == green[:, :half].sum() == 0
    rows = [np.median(np.nonzero(colour)[0]) for colour in (red, green)]
    columns = [np.median(np.nonzero(colour)[1] % half) for colour in (red, green)]
    assert rows[1] < rows[0] - 100
    assert columns[1] > columns[0] + 100


IMAGES, POINTS = torch.zeros(2, 1, 8, 8), torch.randn(9, 2)
DRAWN = {
    kind: {"row": {1: Samples(x, 1, path=[x, x])}} for kind, x in (("i", IMAGES), ("p", POINTS))
}


@pytest.mark.parametrize(
    "save",
    [
        lambda file: save_grid(IMAGES, file),
        lambda file: save_points([POINTS], POINTS, file, "title"),
        lambda file: save_point_table(DRAWN["p"], POINTS, file),
        lambda file: save_image_table(DRAWN["i"], IMAGES, file),
    ],
)
def test_picture_that_cannot_be_finished_leaves_the_one_before(tmp_path, monkeypatch, save):
    def full(_):
        raise OSError(28, "No space left on device")

    file = tmp_path / "p.png"
    file.write_bytes(b"before")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        save(file)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"before"]


def test_titles_and_labels_of_points_are_not_cut_off(tmp_path):
    save_points([torch.randn(50, 2)], torch.randn(60, 2), tmp_path / "s.png", "title")
    picture = pixels(tmp_path / "s.png")[..., :3]
    for edge in (picture[0], picture[-1], picture[:, 0], picture[:, -1]):
        assert (edge == 255).all()


def test_samples_that_run_away_do_not_end_a_table(tmp_path):
    start = torch.randn(40, 2)
    away = start.clone()
    away[0], away[1] = torch.nan, torch.tensor([0.0, 1e30])
    found = Samples(x=away, nfe=2, path=[start, away], finite=False)
    save_point_table({"A": {2: found}}, torch.randn(60, 2), tmp_path / "t.png")
    assert (tmp_path / "t.png").stat().st_size > 0


def test_table_of_points_has_methods_across_and_settings_down(tmp_path):
    """Samples are red, the target green in the last column and the first row alone."""
    start = torch.randn(40, 2)
    found = Samples(x=start + 3, nfe=2, path=[start, start + 3])
    drawn = {name: {2: found, 4: found} for name in ("A", "B", "C")}
    save_point_table(drawn, torch.randn(60, 2), tmp_path / "t.png")
    picture = pixels(tmp_path / "t.png")[..., :3]
    height, width, _ = picture.shape
    places = [
        [
            (picture == colour).all(-1)[r * height // 3 : (r + 1) * height // 3, cut].any()
            for cut in (slice(0, 3 * width // 4), slice(3 * width // 4, width))
        ]
        for colour in ((214, 39, 40), (44, 160, 44))
        for r in range(3)
    ]
    assert places[:3] == [[True, False]] * 3
    assert places[3:] == [[False, True], [False, False], [False, False]]


def test_table_of_images_keeps_each_in_its_place(tmp_path):
    """White for A at NFE 2, black for all others, two greys for the real ones below each."""

    def samples(value):
        return Samples(x=torch.full((4, 1, 8, 8), value), nfe=2)

    drawn = {
        "A": {2: samples(1.0), 4: samples(-1.0)},
        "B": {2: samples(-1.0), 4: samples(-1.0)},
    }
    real = torch.cat([torch.zeros(4, 1, 8, 8), torch.full((4, 1, 8, 8), 0.5)])
    save_image_table(drawn, real, tmp_path / "t.png")
    picture = pixels(tmp_path / "t.png")[..., 0]
    height, width = picture.shape
    corners = [
        (int((r + 0.45) * height / 3), int((c + 0.4) * width / 2))
        for r in range(3)
        for c in range(2)
    ]
    middle = [int(np.median(picture[y : y + 12, x : x + 12])) for y, x in corners]
    assert middle[:4] == [255, 0, 0, 0]
    assert 120 <= middle[4] <= 135
    assert 185 <= middle[5] <= 198


def test_settings_that_a_method_has_not_are_left_empty(tmp_path):
    """A has NFE 4 alone, so that is the setting of all ways: B's way at NFE 2 is not seen."""
    start = torch.randn(40, 2)
    near, far = (Samples(x=start + d, nfe=2, path=[start, start + d]) for d in (0.0, 9.0))
    drawn = {"A": {4: near}, "B": {2: far, 4: near}}
    save_point_table(drawn, torch.randn(60, 2), tmp_path / "t.png")
    picture = pixels(tmp_path / "t.png")[..., :3]
    red = (picture == (214, 39, 40)).all(-1)
    height, width = red.shape
    places = [
        [red[r * height // 3 : (r + 1) * height // 3][:, cut].any() for cut in halves]
        for r in range(3)
        for halves in [(slice(0, width // 2 - 20), slice(width // 2 - 20, width))]
    ]
    assert places == [[True, True], [False, True], [True, True]]
    target = torch.randn(60, 2)
    for name, other in (("a.png", far), ("b.png", replace(far, path=far.path[::-1]))):
        save_point_table({**drawn, "B": {2: other, 4: near}}, target, tmp_path / name)
    assert (pixels(tmp_path / "a.png") == pixels(tmp_path / "b.png")).all()

    def images(value):
        return Samples(x=torch.full((4, 1, 8, 8), value), nfe=2)

    rows = {"A": {4: images(-1.0)}, "B": {2: images(-1.0), 4: images(-1.0)}}
    save_image_table(rows, torch.zeros(4, 1, 8, 8), tmp_path / "i.png")
    picture = pixels(tmp_path / "i.png")[..., 0]
    height, width = picture.shape
    dark = [
        bool((picture[int((r + 0.5) * height / 3), int((c + 0.45) * width / 2)] < 60).any())
        for r in range(2)
        for c in range(2)
    ]
    assert dark == [False, True, True, True]


@pytest.mark.parametrize(("save", "kind"), [(save_image_table, "i"), (save_point_table, "p")])
def test_title_of_a_narrow_picture_is_whole(save, kind, tmp_path):
    target = DRAWN[kind]["row"][1].x
    title = "8gaussians_moons, seed 0: 2048 samples of each, from the same source"
    save(DRAWN[kind], target, tmp_path / "t.png", title=title)
    top = pixels(tmp_path / "t.png")[:40]
    assert (top < 200).any()
    assert (top[:, :4] > 200).all()
    assert (top[:, -4:] > 200).all()


def test_methods_without_a_common_nfe_are_drawn(monkeypatch, tmp_path):
    """Of points the way of each method is that of its own smallest NFE."""
    images = {"A": {10: Samples(IMAGES, 10)}, "B": {1: Samples(IMAGES, 1)}}
    draw = functools.partial(save_image_table, images, IMAGES, tmp_path)
    panels = np.reshape(figure_of(monkeypatch, draw), (3, 2))
    assert [panel.get_title() for panel in panels[0]] == ["NFE 1", "NFE 10"]
    shown = [[bool(panel.images) for panel in row] for row in panels]
    assert shown == [[False, True], [True, False], [True, True]]

    way = {nfe: Samples(POINTS + nfe, nfe, path=[POINTS, POINTS + nfe]) for nfe in (1, 10, 20)}
    points = {"A": {10: way[10], 20: way[20]}, "B": {1: way[1]}}
    draw = functools.partial(save_point_table, points, POINTS, tmp_path)
    panels = np.reshape(figure_of(monkeypatch, draw), (4, 3))
    assert [row[0].get_ylabel() for row in panels[1:]] == ["NFE 1", "NFE 10", "NFE 20"]
    shown = [[bool(panel.collections) for panel in row[:2]] for row in panels]
    assert shown == [[True, True], [False, True], [True, False], [True, False]]
    for panel, nfe in zip(panels[0], (10, 1), strict=False):
        np.testing.assert_allclose(offsets(panel, 2), POINTS + nfe, rtol=1e-6)


@pytest.mark.e2e
def test_backend_of_a_notebook_is_left_alone(tmp_path):
    """Importing loads no matplotlib; drawing loads no pyplot, which alone has a backend."""
    script = f"""
import sys
from pathlib import Path
import torch
from nsgf.plots.samples import save_points
import nsgf.experiment
assert "matplotlib" not in sys.modules
save_points([torch.randn(3, 2)], torch.randn(3, 2), Path({str(tmp_path / "s.png")!r}), "title")
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def figure_of(monkeypatch, draw) -> list:
    """The panels of the figure that ``draw`` would save."""
    figures = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, file, **how: figures.append(figure))
    draw()
    return figures[0].axes


def test_samples_stand_beside_real_images(monkeypatch, tmp_path):
    images, real = torch.full((4, 1, 8, 8), -1.0), torch.full((4, 1, 8, 8), 1.0)
    left, right = figure_of(
        monkeypatch, lambda: plots.save_beside(images, real, tmp_path, "samples of X")
    )
    assert [left.get_title(), right.get_title()] == ["samples of X", "real images"]
    assert left.images[0].get_array()[4, 4].max() == 0
    assert right.images[0].get_array().min() == 1


@pytest.mark.parametrize("count", [1, 8])
def test_tables_say_what_is_shown_in_letters_that_grow_with_them(monkeypatch, tmp_path, count):
    """Wide pictures are shown smaller."""
    settings = {n: Samples(IMAGES, 1, path=[IMAGES]) for n in range(count)}
    methods = {f"method {n}": DRAWN["p"]["row"] for n in range(count)}
    for save, drawn, target in (
        (save_image_table, {"A": settings}, IMAGES.repeat(count, 1, 1, 1)),
        (save_point_table, methods, POINTS),
    ):
        draw = functools.partial(save, drawn, target, tmp_path, title="of moons")
        panel = figure_of(monkeypatch, draw)[0]
        assert panel.figure.get_suptitle() == "of moons"
        assert panel.title.get_fontsize() == max(12, panel.figure.get_figwidth())


def offsets(panel, number: int) -> np.ndarray:
    return np.asarray(panel.collections[number].get_offsets())


def test_points_in_space_are_shown_by_named_coordinates(monkeypatch, tmp_path):
    path, target = [torch.randn(9, 5), torch.randn(9, 5)], torch.randn(7, 5)
    names = ("length", "width", *"abc")
    left, right = figure_of(monkeypatch, lambda: save_points(path, target, tmp_path, "t", names))
    assert left.get_xlabel() == right.get_xlabel() == "length (of 5 coordinates)"
    assert left.get_ylabel() == "width"
    assert left.get_aspect() == "auto"
    np.testing.assert_allclose(offsets(left, 1), path[0][:, :2], rtol=1e-6)
    np.testing.assert_allclose(offsets(left, 2), path[1][:, :2], rtol=1e-6)
    np.testing.assert_allclose(offsets(right, 0), target[:, :2], rtol=1e-6)


def test_points_on_a_line_are_shown_step_by_step_and_as_histograms(monkeypatch, tmp_path):
    path, target = [torch.randn(9, 1) for _ in range(3)], torch.randn(50, 1)
    names = ("age",)
    left, right = figure_of(monkeypatch, lambda: save_points(path, target, tmp_path, "t", names))
    assert (left.get_xlabel(), left.get_ylabel()) == ("age", "step")
    for number, state in ((1, 0), (2, 2)):
        drawn = offsets(left, number)
        np.testing.assert_allclose(drawn[:, 0], path[state][:, 0], rtol=1e-6)
        assert (drawn[:, 1] == state).all()
    shares = [polygon.get_xy()[:, 1].max() for polygon in right.patches]
    assert len(shares) == 2
    assert all(0 < share <= 1 for share in shares)


@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.parametrize("has_names", [False, True])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_tables_and_single_states_are_drawn_in_every_dimension(dim, has_names, kind, tmp_path):
    names = tuple("abcde"[:dim]) if has_names else None
    states = [torch.randn(30, dim, dtype=kind) for _ in range(2)]
    drawn = {"A": {2: Samples(x=states[1], nfe=2, path=states)}}
    save_point_table(drawn, torch.randn(30, dim, dtype=kind), tmp_path / "t.png", names)
    save_points(states[:1], states[1], tmp_path / "s.png", "title", names)
    assert pixels(tmp_path / "t.png").shape[1] > 300 < pixels(tmp_path / "s.png").shape[1]


def test_names_of_columns_are_shown_as_they_are(tmp_path):
    """Dollars are no formula, a long name does not push the picture away, any script is taken."""
    x = torch.randn(9, 2)
    for names in (("US$_$", "$x, $y"), ("n" * 5000, "年齢"), ("\\frac", "a\nb")):
        save_points([x], x, tmp_path / "s.png", "title", names)
        drawn = {"A": {2: Samples(x=x, nfe=2, path=[x, x])}}
        save_point_table(drawn, x, tmp_path / "t.png", names)
    assert pixels(tmp_path / "s.png").shape[1] < 1600
