import numpy as np
import torch
from PIL import Image

from nsgf.plotting import save_grid, save_image_path, save_point_path


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


def test_image_path_has_one_row_per_sample_and_one_column_per_state(tmp_path):
    path = [torch.full((10, 3, 32, 32), v) for v in (-1.0, 1.0, -1.0, 1.0, 1.0)]
    save_image_path(path, tmp_path / "p.png", rows=2)
    picture = pixels(tmp_path / "p.png")
    height, width, _ = picture.shape
    middle = [picture[height // 4, (2 * c + 1) * width // 10, 0] for c in range(5)]
    assert middle == [0, 255, 0, 255, 255]


def test_point_path_is_drawn(tmp_path):
    start = torch.randn(50, 2)
    save_point_path([start, start + 3], torch.randn(60, 2), tmp_path / "s.png", "title")
    picture = pixels(tmp_path / "s.png")
    assert picture.shape[1] > 1000
    assert (picture[..., :3].reshape(-1, 3) != 255).any(1).mean() > 0.01
