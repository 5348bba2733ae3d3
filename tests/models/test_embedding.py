import torch

from nsgf.models.embedding import time_features


def test_values_are_cosines_and_sines_of_the_named_frequencies():
    features = time_features(torch.tensor([0.0, 0.3]), 6, fastest=100.0, slowest=1.0)
    frequency = torch.tensor([100.0, 10.0, 1.0])
    expected = torch.cat([(0.3 * frequency).cos(), (0.3 * frequency).sin()])
    torch.testing.assert_close(features[1], expected, atol=1e-5, rtol=1e-4)
    assert features[0].tolist() == [1, 1, 1, 0, 0, 0]


def test_smallest_embedding():
    assert time_features(torch.rand(3), 2, fastest=10.0, slowest=1.0).shape == (3, 2)
