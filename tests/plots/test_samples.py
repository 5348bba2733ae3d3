import subprocess
import sys
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from nsgf.plots.samples import (
    PATH_ROWS,
    PATH_STATES,
    chosen_states,
    compare_images,
    cut_panels,
    draw_image_path,
    draw_points,
    draw_table,
    save_figure,
    save_grid,
    to_pictures,
)
from nsgf.sampling.sampler import Samples


def pixels(file):
    return np.asarray(Image.open(file)).astype(int)


def cell(panel, row, column):
    """The brightness in the middle of an image of a grid: each has 8 pixels and a margin of one."""
    array = np.asarray(panel.images[0].get_array())
    return round(float(array[row * 9 + 4, column * 9 + 4, 0]) / 255, 2)


def legend_of(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def offsets(panel, number):
    return np.asarray(panel.collections[number].get_offsets())


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


def test_a_last_channel_is_not_shown_as_transparency():
    modes = [next(to_pictures(torch.zeros(1, count, 4, 4))).mode for count in range(1, 5)]
    assert modes == ["L", "L", "RGB", "RGB"]


def image_path(nsgf, straight):
    """Ten samples: black at the start, grey after NSGF steps, white on the straight flow."""
    values = [-1.0] + [0.0] * nsgf + [1.0] * straight
    marks = [f"NSGF {step}/{nsgf}" for step in range(1, nsgf + 1)]
    marks += [f"straight flow {step}/{straight}" for step in range(1, straight + 1)]
    path = [torch.full((10, 3, 8, 8), value) for value in values]
    return Samples(path[-1], 0.0, path=path, marks=["start", *marks])


def test_image_path_has_a_row_for_each_sample_and_a_column_for_each_state():
    (panel,) = draw_image_path(image_path(2, 3)).axes
    for row in range(PATH_ROWS):
        shown = [cell(panel, row, column) for column in range(6)]
        np.testing.assert_allclose(shown, [0, 0.5, 0.5, 1, 1, 1])
    labels = [label.get_text() for label in panel.get_xticklabels()]
    assert labels == ["1/2", "2/2", "1/3", "2/3", "3/3"]
    legs = {name.get_text(): name.xy[0] for name in panel.texts}  # each over the middle of its own
    assert legs == {"start": 4.5, "NSGF": 18, "straight flow": 40.5}


@pytest.mark.parametrize(("nsgf", "straight"), [(5, 54), (100, 0), (0, 100)])
def test_some_states_of_a_long_path_are_shown(nsgf, straight):
    """All of the NSGF steps if they fit, and equally many between the others."""
    chosen = chosen_states(["start", *["NSGF"] * nsgf, *["straight flow"] * straight])
    assert 0.6 * PATH_STATES < len(chosen) <= PATH_STATES
    kept = nsgf if nsgf < PATH_STATES else 0
    assert chosen[: kept + 1] == [*range(kept + 1)]
    assert chosen[-1] == nsgf + straight
    assert len({*np.diff(chosen[nsgf + 1 if straight else 1 :]).tolist()}) == 1


def test_points_are_drawn_with_their_path_beside_the_target():
    """The straight flow has another colour."""
    start, target = torch.randn(9, 2), torch.randn(60, 2)
    path = [start + step for step in range(5)]
    figure = draw_points(path, target, "title", marks=image_path(2, 2).marks)
    left, right = figure.axes
    before, after = (left.collections[number].get_segments()[4] for number in (0, 2))
    np.testing.assert_allclose(before, [state[4] for state in path[:3]])
    np.testing.assert_allclose(after, [state[4] for state in path[2:]])
    np.testing.assert_allclose(offsets(right, 0), target)
    assert left.get_xlim() == right.get_xlim()
    assert legend_of(figure) == ["source", "the straight flow takes over", "samples", "target"]
    assert legend_of(draw_points([start], target, "title")) == ["samples", "target"]
    (panel,) = draw_points([start, start + 3], None, "title").axes
    for number, state in ((1, start), (2, start + 3)):
        np.testing.assert_allclose(offsets(panel, number), state)


def test_panels_and_legend_are_cut_apart():
    figure = draw_points([torch.randn(9, 2), torch.randn(9, 2)], torch.randn(9, 2), "t")
    for panel, color in zip(figure.axes, ("black", "gold"), strict=True):
        panel.set_facecolor(color)
    cut = [(Image.open(BytesIO(part)), width) for part, width in cut_panels(figure)]
    middles = [part.convert("RGB").getpixel((60, part.height // 3)) for part, _ in cut]
    assert middles[:2] == [(0, 0, 0), (255, 215, 0)]
    assert [round(width) for _, width in cut[:2]] == pytest.approx([50, 50], abs=8)
    assert len(cut) == 3


def test_titles_and_labels_are_not_cut_off(tmp_path):
    """Past mistake: The test looked at the size of a picture only, and titles and axis labels
    were cut off.
    """
    long, images = "8gaussians_moons, seed 0: 2048 samples of each, x", torch.zeros(2, 1, 8, 8)
    for figure in (
        draw_points([torch.randn(50, 2)], torch.randn(60, 2), "t"),
        draw_table({"A": {1: Samples(images, 1)}}, images, long),
    ):
        save_figure(figure, tmp_path / "s.png")
        picture = pixels(tmp_path / "s.png")[..., :3]
        for edge in (picture[0], picture[-1], picture[:, 0], picture[:, -1]):
            assert (edge == 255).all()


def test_points_with_other_numbers_of_named_coordinates():
    for dim, *labels in ((5, "age (of 5 coordinates)", "width"), (1, "age", "step")):
        path, target = [torch.randn(9, dim) for _ in range(3)], torch.randn(50, dim)
        figure = draw_points(path, target, "t", ("age", "width", *"abc")[:dim])
        left, right = figure.axes
        assert legend_of(figure) == ["source", "samples", "target"]
        assert left.get_aspect() == "auto"
        assert [left.get_xlabel(), left.get_ylabel()] == labels
        shown = torch.cat([path[2], torch.full((9, 1), 2.0)], 1)[:, :2]
        np.testing.assert_allclose(offsets(left, 2), shown)
        if dim > 1:
            np.testing.assert_allclose(offsets(right, 0), target[:, :2])


def test_table_of_points_has_methods_across_and_nfe_down():
    """The path is that of the smallest NFE; a method may lack some NFE."""
    start, target = torch.randn(40, 2), torch.randn(60, 2)
    drawn = {nfe: Samples(start + nfe, nfe, path=[start, start + nfe]) for nfe in (1, 10)}
    figure = draw_table({"A": {10: drawn[10]}, "B": drawn}, target, "t")
    panels = np.reshape(figure.axes, (3, 3))
    assert figure.get_suptitle() == "t"
    assert [panel.get_title() for panel in panels[0]] == ["A", "B", "Target"]
    assert [row[0].get_ylabel() for row in panels[1:]] == ["1 network call", "10 network calls"]
    assert not panels[1][0].collections
    assert panels[2][0].collections
    for panel, nfe in zip(panels[0], (10, 1), strict=False):
        np.testing.assert_allclose(offsets(panel, 1), start, rtol=1e-6)
        np.testing.assert_allclose(offsets(panel, 2), start + nfe, rtol=1e-6)
    np.testing.assert_allclose(offsets(panels[0][2], 0), target, rtol=1e-6)


def test_images_keep_their_place_in_a_table_and_beside_real_ones():
    left, right = compare_images(torch.full((4, 1, 8, 8), -1.0), torch.ones(4, 1, 8, 8), "t").axes
    assert [left.get_title(), right.get_title()] == ["t", "Real images"]
    assert (cell(left, 0, 0), cell(right, 0, 0)) == (0, 1)

    white, black, grey, real = (torch.full((4, 1, 8, 8), value) for value in (1, -1, 0, 0.2))
    drawn = {"A": {2: Samples(white, 2), 4: Samples(black, 4)}, "B": {4: Samples(grey, 4)}}
    panels = np.reshape(draw_table(drawn, real, "t").axes, (2, 3))
    assert not panels[0][1].images
    shown = [cell(panel, 1, 1) for panel in panels.flat if panel.images]
    np.testing.assert_allclose(shown, [1, 0.6, 0, 0.5, 0.6], rtol=1e-6)


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_tables_are_drawn_whatever_the_samples_are(dim, tmp_path):
    """In every dimension, with any name of a coordinate, with samples that ran away."""
    start, away, target = torch.randn(3, 30, dim, dtype=torch.float64)
    away[0], away[1] = torch.nan, 1e30
    drawn = {"A": {2: Samples(away, 2, path=[start, away])}}
    names = ("US$_$", "n" * 5000, "年齢", "\\frac", "a\nb")[:dim]
    for axes in (None, names):
        figure = draw_table(drawn, target, "t", axes)
        assert figure.axes[-1].get_xlabel().startswith("US$_$") == bool(axes)
        save_figure(figure, tmp_path / "t.png")
        assert max(map(abs, figure.axes[0].get_xlim())) < 10
        save_figure(draw_points([start], target, "t", axes), tmp_path / "s.png")
        assert pixels(tmp_path / "s.png").shape[1] < 1600


@pytest.mark.e2e
def test_backend_of_a_notebook_is_left_alone():
    """Importing loads no matplotlib; drawing loads no pyplot, which alone has a backend."""
    script = """
import sys
import torch
from nsgf.plots.samples import draw_points
import nsgf.commands.train
assert "matplotlib" not in sys.modules
draw_points([torch.randn(3, 2)], torch.randn(3, 2), "title")
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
