"""What remains of a step: the kernels of one epoch of Co-Boosting, by the time they take.

    python benchmarks/profile_steps.py --net cnn5 --device cuda --precision bf16 --compile -o profile-cnn5.txt

Recorded steps are profiled as they run; a kernel's share is of all kernel time, and "busy" is
kernel time over the clock: what is missing there is waiting for the host.
"""

import argparse
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from attar.cli.timing import Setting, _make_context, _resize, _start_last_phase, _step

SHOWN = 25


def table(setting: Setting, steps: int, pool: int) -> str:
    room, method = _make_context(setting)
    phase, state = _start_last_phase(setting, room, _resize(setting, method, steps, pool))
    for _ in range(4):
        _step(setting, phase, state)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if setting.cuda else [])]
    if setting.cuda:
        torch.cuda.synchronize()
    begun = time.perf_counter()
    with profile(activities=activities) as seen:
        _step(setting, phase, state)
        if setting.cuda:
            torch.cuda.synchronize()
    clock = 1e6 * (time.perf_counter() - begun)

    def own(event: torch.autograd.profiler_util.FunctionEventAvg) -> float:
        time_: float = event.self_device_time_total if setting.cuda else event.self_cpu_time_total
        return time_

    events = sorted(
        (event for event in seen.key_averages() if own(event) > 0), key=own, reverse=True
    )
    if setting.cuda:  # kernels alone: an operator is charged for its kernels a second time
        events = [event for event in events if event.device_type == torch.autograd.DeviceType.CUDA]
    total = sum(own(event) for event in events)
    lines = [
        f"{steps} generator steps, {pool} pool batches: {clock / 1000:.2f} ms on the clock, {100 * total / clock:.0f} % busy"
    ]
    lines += [
        f"{100 * own(event) / total:5.1f} %  {event.count:6d} x  {event.key[:110]}"
        for event in events[:SHOWN]
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--net", default="cnn5")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--pool", type=int, default=32)
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    setting = Setting(
        net=given.net,
        clients=given.clients,
        batch=given.batch,
        device=given.device,
        precision=given.precision,
        compile=given.compile,
    )
    text = f"{setting}\n\n{table(setting, given.steps, 1)}\n\n{table(setting, 1, given.pool)}\n"
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
