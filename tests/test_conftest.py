import torch


def test_unit_tests_run_on_one_thread():
    """Two threads that spin for each other on a busy machine cost a factor of ten.

    Past mistake: Tests used two threads on a machine with one free core and were ten times
    slower.
    """
    assert torch.get_num_threads() == 1
