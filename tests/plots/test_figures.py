import numpy as np
import pytest
import torch
from PIL import Image

from nsgf.plots.figures import FEW_POINTS, FRAMES, draw_curves, save_animation
from nsgf.sampling.sampler import Samples


def test_curves_show_each_phase_and_single_points():
    many = [(step, 1.0 / step, 2.0) for step in range(1, FEW_POINTS + 1)]
    axes = draw_curves({"nsgf": many, "nsf": [(7, 3.0, 4.0)]}).axes
    shown = [panel.lines[0] for panel in axes]
    assert [line.get_marker() for line in shown] == ["None", ".", "None", "."]
    assert [line.get_ydata()[0] for line in shown] == [1.0, 3.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("shape", "states", "kind"),
    [
        ((32, 1, 8, 8), 2, "gif"),
        ((8, 3, 90, 90), 50, "gif"),
        ((72, 1, 4, 600), 2, "gif"),
        ((9, 5), 2, "webp"),
    ],
)
def test_animation_has_a_frame_for_each_state_and_is_small(
    shape, states, kind, tmp_path, monkeypatch
):
    """Otherwise some frames, the first and the last among them."""
    limit = 200_000
    monkeypatch.setattr("nsgf.plots.figures.MAX_BYTES", limit)
    path = [torch.full(shape, -1.0), *torch.randn(states - 1, *shape), torch.full(shape, 1.0)]
    marks = ["start", *(f"NSGF {step}/{states}" for step in range(1, states + 1))]
    save_animation(Samples(path[-1], 1.0, path=path, marks=marks), file := tmp_path / f"a.{kind}")
    assert file.stat().st_size < limit
    with Image.open(file) as picture:
        assert picture.format == kind.upper()
        assert 3 < picture.n_frames < FRAMES / 2 if states > FRAMES else picture.n_frames > states
        if len(shape) == 4:
            assert 300 < picture.width < 700
            for frame, brightness in ((0, 0), (picture.n_frames - 1, 255)):
                picture.seek(frame)
                shown = np.asarray(picture.convert("L"))
                assert shown[-picture.height // 8, picture.width // 16] == brightness
