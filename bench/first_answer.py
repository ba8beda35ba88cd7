"""How long the first answer takes: `vramcast forecast NAME` from the shell to the last line. `make first-answer`.

Writes docs/benchmarks/first-answer.md. Each command is a process of its own, so everything is loaded again; the files
are in the page cache after the first round, which is not counted.
"""

from __future__ import annotations

import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs/benchmarks/first-answer.md"
PROGRAM = str(Path(sys.executable).parent / "vramcast")
ROUNDS = 5
LLAMA = "meta-llama/Llama-3.1-8B --batch-size 4 --sequence-length 4096 --precision bf16 --lora-rank 16"
COMMANDS = {
    "a recorded model, one GPU": f"forecast {LLAMA} --gradient-checkpointing --gpu L40S",
    "a recorded model, nine GPUs": f"forecast {LLAMA} --gradient-checkpointing",
    "a model known by its layers, one GPU": "forecast timm/resnet50 --batch-size 64 --gpu T4",
    "a model known by its layers, nine GPUs": "forecast timm/resnet50 --batch-size 64",
    "advice": f"advise {LLAMA} --gradient-checkpointing --gpu L40S",
    "advice, nothing fits": "advise meta-llama/Llama-3.1-8B --sequence-length 8192 --precision bf16 --gpu P4",
    "completion of a name": "",
}
COMPLETION = {
    "_VRAMCAST_COMPLETE": "complete_bash", "COMP_WORDS": "vramcast forecast timm/resnet5", "COMP_CWORD": "2",
}  # fmt: skip


def seconds(arguments: str) -> tuple[float, float]:
    """Wall clock and CPU of one process."""
    environment = {**os.environ, **({} if arguments else COMPLETION)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run([PROGRAM, *arguments.split()], env=environment, capture_output=True, check=False)
    took = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    rows = []
    for name, arguments in COMMANDS.items():
        seconds(arguments)
        taken = [seconds(arguments) for _ in range(ROUNDS)]
        wall, cpu = (statistics.median(column) for column in zip(*taken, strict=True))
        fastest = min(each for each, _ in taken)
        shown = f"`vramcast {arguments}`" if arguments else "`vramcast forecast timm/resnet5<TAB>`"
        rows.append(f"| {name} | {shown} | {wall:.2f} s | {fastest:.2f} s | {cpu:.2f} s |")
        print(rows[-1])
    table = "\n".join(rows)
    PAGE.write_text(
        "# The first answer\n\n"
        "From the shell's call to the last line, each in a process of its own, warm. "
        f"`make first-answer` wrote this page; {ROUNDS} rounds, on {platform.machine()} with Python "
        f"{platform.python_version()}.\n\n"
        "| what | command | median | fastest | CPU time |\n|---|---|---|---|---|\n"
        f"{table}\n\n"
        "On a machine that is busy with other work, CPU time tells what a quiet one would take.\n"
    )


if __name__ == "__main__":
    main()
