"""Groups of a generator's samples, within which they are transported: one for each class and one
more for none, or all together.

Sample i of a batch is of group i mod G. Shapes: B samples, G groups, *shape one sample.
"""

from collections.abc import Iterator

from torch import Tensor

from nsgf.config.schema import Config, GeneratorConfig
from nsgf.data import data_classes
from nsgf.data.classes import nearest_multiple


def targets_of(config: GeneratorConfig) -> int:
    """Real samples of an update."""
    return config.targets or config.batch_size


def groups_of(config: Config) -> int:
    """Groups within which samples are transported: K + 1 with K classes, else all together."""
    return data_classes(config.data) + 1


def grouped(samples: Tensor, groups: int) -> Tensor:
    """Samples of the groups in turn, (B, *shape), group by group.  (G, B / G, *shape)"""
    return samples.unflatten(0, (-1, groups)).transpose(0, 1)


def in_turn(groups: Tensor) -> Tensor:
    """The inverse of :func:`grouped`: (G, B / G, *shape) -> (B, *shape)."""
    return groups.transpose(0, 1).flatten(0, 1)


def group_problems(config: Config, processes: int = 1) -> Iterator[str]:
    """Why the batches of so many processes cannot be made of two halves of each group."""
    own, groups = config.generator, groups_of(config)
    unit = 2 * groups * processes
    where = f" and {processes} processes" if processes > 1 else ""
    for key, count in (("batch_size", own.batch_size), ("targets", own.targets)):
        if groups > 1 and count and count % unit:
            yield (
                f"generator.{key} = {count}: must be a multiple of {unit} with {groups - 1} "
                f"classes{where}, two halves for each and for none; the nearest is "
                f"{nearest_multiple(count, unit)}"
            )
