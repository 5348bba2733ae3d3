from math import inf, nan

import pytest

from nsgf.pool.trajectories import Header, write_header
from nsgf.run import checkpoint
from nsgf.run.log import RunLog
from nsgf.system.files import parse_object, read_lines, read_object

BAD = {
    "nothing": "",
    "cut off": '{"a": 1',
    "list": "[1]",
    "number": "3",
    "bytes": b"\xff\xfe\x00",
    "deep": "[" * 100_000,
    **{word: f'{{"a": [{word}]}}' for word in ("NaN", "Infinity", "-Infinity", "1e999", "9" * 400)},
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_object_of_finite_numbers_is_refused(kind):
    with pytest.raises(ValueError, match=r"."):
        parse_object(BAD[kind])


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: checkpoint.save(folder / "x.pt", {"step": 1, "config": {"scale": [inf]}}),
        lambda folder: write_header(folder, Header("float32", {"data.found": {"mean": [nan]}})),
        lambda folder: RunLog(folder).record(loss=-inf),
    ],
)
def test_what_cannot_be_read_is_not_written(write, tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write(tmp_path)
    assert not list(tmp_path.iterdir())


def test_files_that_cannot_be_read_hold_nothing(tmp_path):
    (tmp_path / "x.json").write_text('{"a": 1}')
    assert read_object(tmp_path / "x.json") == {"a": 1}
    (tmp_path / "bad.json").write_text('{"a": NaN}')
    for file in (tmp_path / "bad.json", tmp_path, tmp_path / "none"):
        assert read_object(file) == {}


def test_lines_without_their_fields_are_left_out(tmp_path):
    file = tmp_path / "x.jsonl"
    assert list(read_lines(file, step=int)) == []
    bad = [text if isinstance(text, bytes) else text.encode() for text in BAD.values()]
    wrong = [b'{"step": Infinity}', b'{"step": "3"}', b"{}"]
    file.write_bytes(b"\n".join([b'{"step": 1}', *bad, *wrong, b'{"step": 2, "x": 0}', b'{"st']))
    assert list(read_lines(file, step=int)) == [[1], [2]]
