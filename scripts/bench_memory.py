"""Memory of an update of phase 1, estimated and measured.

    python scripts/bench_memory.py [--device cuda] [--exp cifar10] [any flag of `nsgf train`]

Ends with exit code 1 where what a card's update takes differs from the estimate by more than a
fifth. On a CPU the process is measured, which keeps what it frees: not judged.
"""

import bench_common

from nsgf.phases import get_phase
from nsgf.preflight import ready
from nsgf.system.hardware import format_bytes, pick_device
from nsgf.training.memory import training_memory
from nsgf.training.precision import device_settings

TOLERATED = 0.2


def main() -> None:
    options, flags = bench_common.parser(__doc__).parse_known_args()
    config = bench_common.experiment(options.exp, [*flags, "--device", options.device])
    device, phase = pick_device(config.device), get_phase(options.phase)
    needed, memory = training_memory(config, phase, device), bench_common.PeakMemory(device)
    with device_settings(config.train):
        state, batch = ready(config, phase, device)
        for _ in range(3):
            state.update(batch).read()
    ratio = memory.bytes() / needed.total
    print(
        f"{options.exp}, {options.phase}, {needed.precision}: estimated "
        f"{format_bytes(needed.total)}, measured {format_bytes(memory.bytes())}, {ratio:.2f} times"
    )
    if device.type == "cuda" and abs(ratio - 1) > TOLERATED:
        raise SystemExit(1)


if __name__ == "__main__":
    bench_common.finish(main)
