from nsgf.system.seeding import derive_seed


def test_streams_differ_by_seed_and_by_each_name():
    seeds = {
        derive_seed(seed, *names)
        for seed in (0, 1)
        for names in ((), ("a",), ("b",), ("a", "b"), ("b", "a"), ("ab",), ("a", 0), ("a", 1))
    }
    assert len(seeds) == 16
    assert all(0 <= seed < 2**63 for seed in seeds)
