"""Labels and images belong together, whichever part of a stream is read."""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nsgf.data import DATA_SETS, ClassSampler, Data, ImageSampler, LabelDropout, class_labels
from nsgf.data.images import ImageSet, to_unit_range
from nsgf.data.samplers import DROPPED
from nsgf.system.errors import UserError
from tests.conftest import shipped
from tests.data.test_samplers import numbers

TOLD = replace(shipped("digits/onecall").data, conditional=True)


def streams(classes: int = 3, count: int = 7) -> list[ImageSampler]:
    """Images of one pixel, 100 c + 0 .. count - 1 in class c."""
    images = torch.cat([100 * c + torch.arange(count) for c in range(classes)]).to(torch.uint8)
    numbered = images.view(-1, 1, 1, 1)
    rows = torch.arange(len(images)).view(classes, count)
    return [ImageSampler(numbered, c, chosen=own) for c, own in enumerate(rows)]


def test_classes_come_in_turn():
    assert class_labels(range(4, 9), 3).tolist() == [1, 2, 0, 1, 2]
    assert class_labels(range(3, 9), 2, run=4).tolist() == [0, 1, 1, 1, 1, 0]
    assert class_labels(range(1), 3).dtype == torch.int32  # 64 bits would stay on the CPU


@pytest.mark.parametrize("run", [1, 4, 5])
def test_stream_of_classes_does_not_depend_on_how_it_is_cut(run):
    """Each sample has the class of its position, and each class its own order."""
    whole, labels = ClassSampler(streams(), run).at(range(90)), class_labels(range(90), 3, run)
    assert [number // 100 for number in numbers(whole)] == labels.tolist()
    assert torch.equal(whole[labels == 1], streams()[1].at(range(30)))
    for cut in (range(31), range(31, 33), range(13, 41)):
        assert torch.equal(ClassSampler(streams(), run).at(cut), whole[cut.start : cut.stop])


@pytest.mark.parametrize("mixed", [False, True])
def test_every_digit_is_of_its_class_and_the_last_group_of_all(mixed):
    data, cut = Data(TOLD, 0), range(5, 335)
    real = to_unit_range(data.images).flatten(1)
    drawn = data.target_by_class("x", mixed=mixed).at(cut).flatten(1)
    found, told = data._labels[torch.cdist(drawn, real).argmin(1)], class_labels(cut, 10 + mixed)
    assert data.classes == 10
    assert torch.equal(found[told < 10], told[told < 10].long())
    assert not mixed or len(found[told == 10].unique()) > 5


def test_streams_of_classes_differ_and_need_the_setting():
    """Else the same places of all classes would come together."""
    data = Data(TOLD, 0)
    one, other = (data.target_by_class(name).at(range(50)) for name in ("x", "y"))
    assert not torch.equal(one, other)
    assert Data(replace(TOLD, conditional=False), 0).classes == 0


def test_streams_of_many_classes_compare_no_label_twice(monkeypatch):
    """Each class has its own images in their order, for work that is linear in their number."""
    classes, count = 200, 4000
    labels = torch.randint(classes, (count,), generator=torch.Generator().manual_seed(0))
    kind = ImageSet(
        name="digits",
        shape=(1, 1, 1),
        read_images=lambda _: torch.zeros(count, 1, 1, 1, dtype=torch.uint8),
        read_labels=lambda _: labels,
        class_names=tuple(map(str, range(classes))),
    )
    monkeypatch.setitem(DATA_SETS, "digits", kind)

    class Counted(TorchDispatchMode):
        values = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            found = function(*args, **(kwargs or {}))
            for part in found if isinstance(found, tuple | list) else [found]:
                Counted.values += part.numel() if isinstance(part, torch.Tensor) else 0
            return found

    data = Data(TOLD, 0)
    with Counted():
        stream = data.target_by_class("x")
        stream.at(range(5 * classes))
    assert 0 < Counted.values < 20 * count
    for label, one in enumerate(stream._streams):
        assert torch.equal(one._chosen, (labels == label).nonzero()[:, 0])


def test_class_without_images_is_one_line(monkeypatch):
    real = ImageSet.labels
    monkeypatch.setattr(ImageSet, "labels", lambda *given: real(*given).clamp(max=8))
    with pytest.raises(UserError, match=r"^data\.conditional = true: 1 class"):
        Data(TOLD, 0)


def test_labels_are_left_out_by_seed_and_position():
    labels = class_labels(range(4000), 10)
    kept = LabelDropout(10, 0)(labels, range(4000))
    dropped = kept == 10
    assert torch.equal(kept[~dropped], labels[~dropped])
    assert float(dropped.float().mean()) == pytest.approx(DROPPED, abs=0.02)
    again = LabelDropout(10, 0)(labels[100:120], range(100, 120))
    assert torch.equal(again, kept[100:120])
    assert not torch.equal(LabelDropout(10, 1)(labels, range(4000)), kept)
