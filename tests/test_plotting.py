import numpy as np
import torch
from PIL import Image

from nsgf.plotting import save_grid, save_image_path, save_point_path, save_scatter


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


def test_scatter_has_samples_left_and_target_right_on_the_same_axes(tmp_path):
    """Red samples around (0, 0) and green ones around (3, 3): centre, then up and right of it."""
    save_scatter(0.1 * torch.randn(80, 2), 3 + 0.1 * torch.randn(80, 2), tmp_path / "s.png", "t")
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


def test_titles_and_labels_of_points_are_not_cut_off(tmp_path):
    save_scatter(torch.randn(50, 2), torch.randn(60, 2), tmp_path / "s.png", "title")
    picture = pixels(tmp_path / "s.png")[..., :3]
    for edge in (picture[0], picture[-1], picture[:, 0], picture[:, -1]):
        assert (edge == 255).all()
