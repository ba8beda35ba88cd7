"""Reads measured step times: timm's benchmarks, and Gavel's throughputs of jobs that ran alone.

A row that cannot be trusted is left out, and counted by its reason.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vramcast.errors import InvalidInput, InvalidTask
from vramcast.forecast.catalog import Catalog, Line, builtin_catalog
from vramcast.forecast.description import Description
from vramcast.hardware.peaks import PEAKS
from vramcast.names import Product
from vramcast.task.task import Task
from vramcast.task.vocabulary import Attention, Kind, Level, Precision

# benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv
_TIMM_FILE = re.compile(r"benchmark-(train|infer)-amp-(nchw|nhwc)-pt(\d)(\d+)-cu\d+-(\w+)\.csv")
_TIMM_GPUS = {
    "rtx3090": "NVIDIA-GeForce-RTX-3090",
    "rtx4090": "NVIDIA-GeForce-RTX-4090",
    "5090": "NVIDIA-GeForce-RTX-5090",
    "pro6000maxq": "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edition",
}
# Of Gavel's jobs, this is the one whose network is known: ImageNet, fp32, one GPU.
_GAVEL_JOB = re.compile(r"\('ResNet-50 \(batch size (\d+)\)', 1\)")
_GAVEL_MODEL = "torchvision/resnet50"
_GAVEL_GPUS = {"v100": "Tesla-V100-SXM2-16GB", "p100": "Tesla-P100-PCIE-16GB", "k80": "Tesla-K80"}
_GAVEL_FILE = "gavel_colocation.csv"
# A network that was changed for the benchmark (merged branches) has other parameters than the catalog's.
_PARAMETERS_APART = 0.02
# The published step time and samples per second are of the same measurement.
_FIGURES_APART = 0.05


@dataclass(frozen=True, slots=True)
class SpeedRun:
    source: str
    group: str  # whole groups are held out
    model: str
    network: Description
    task: Task
    product: Product
    channels_last: bool
    seconds: float
    file: str = ""  # without its ending


@dataclass(slots=True)
class SpeedRuns:
    runs: list[SpeedRun] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    published_gmacs: dict[tuple[str, int], float] = field(default_factory=dict)  # by model and image side


def has_speed_runs(data: Path) -> bool:
    return any((data / "speed").glob("*.csv"))


def read_speed_runs(data: Path, *, families: bool = True) -> SpeedRuns:
    """`data` holds `speed/*.csv` and, if there, `extra/gavel_colocation.csv`. Raises InvalidInput.

    `families`: groups are timm's modules, which needs timm, and otherwise networks.
    """
    files = sorted((data / "speed").glob("*.csv"))
    if not files:
        raise InvalidInput(f"--data {data}: no speed/*.csv in it; expected timm's benchmark files")
    reader = _Reader(builtin_catalog(), modules_of_timm() if families else {})
    for path in files:
        reader.read_timm(path)
    gavel = data / "extra" / _GAVEL_FILE
    if gavel.exists():
        reader.read_gavel(gavel)
    return reader.found


def modules_of_timm() -> Mapping[str, str]:
    """The module that defines a model, which is its family."""
    try:
        import timm  # noqa: PLC0415 - an extra
        from timm.models import _registry  # noqa: PLC0415
    except ImportError as error:
        raise InvalidInput("holding out families needs timm: pip install 'vramcast[train,catalog]'") from error
    assert timm  # noqa: S101 - importing it fills the registry
    return dict(_registry._model_to_module)


class _Reader:
    def __init__(self, catalog: Catalog, modules: Mapping[str, str]) -> None:
        self._catalog, self._modules, self._file = catalog, modules, ""
        self._networks: dict[tuple[str, int], Description] = {}
        self.found = SpeedRuns()

    def read_timm(self, path: Path) -> None:
        named = _TIMM_FILE.fullmatch(path.name)
        if named is None or named[5] not in _TIMM_GPUS:
            raise InvalidInput(f"{path}: expected a name such as benchmark-train-amp-nchw-pt112-cu113-rtx3090.csv")
        self._file = path.stem
        mode, layout, major, _, gpu = named.groups()
        # PyTorch 1 had no fused attention.
        attention = Attention.EAGER if major == "1" else Attention.SDPA
        kind = Kind.TRAINING if mode == "train" else Kind.INFERENCE
        source = f"timm-{mode}-{layout}" if mode == "train" else "timm-infer"
        for row in _rows(path):
            reason = self._add_timm(row, mode, Product(_TIMM_GPUS[gpu]), source, kind, attention, layout == "nhwc")
            if reason:
                self.found.left_out[f"{source}: {reason}"] += 1

    def _add_timm(
        self, row: Mapping[str, str], mode: str, product: Product, source: str, kind: Kind, attention: Attention,
        channels_last: bool,
    ) -> str:  # fmt: skip
        """The reason why it is left out; empty if it is not."""
        try:
            side, batch = int(row[f"{mode}_img_size"]), int(row[f"{mode}_batch_size"])
            seconds, rate = float(row[f"{mode}_step_time"]) / 1e3, float(row[f"{mode}_samples_per_sec"])
            parameters = 1e6 * float(row["param_count"])
        except (KeyError, ValueError):
            return "a figure is missing"
        if min(side, batch, seconds, rate) <= 0 or abs(batch / seconds / rate - 1.0) > _FIGURES_APART:
            return "impossible figures"
        line = self._catalog.find(f"timm/{row['model']}")
        if line is None:
            return "unknown model"
        if abs(line.parameters - parameters) > _PARAMETERS_APART * parameters:
            return "other parameters than the catalog's network"
        network = self._network(line, side)
        if network is None:
            return "unknown size"
        if row.get("infer_gmacs"):
            self.found.published_gmacs[line.name, side] = float(row["infer_gmacs"])
        task = Task(Level.NAME, kind=kind, model=line.name, batch_size=batch, input_size=(3, side, side),
                    precision=Precision.AMP_FP16, attention=attention)  # fmt: skip
        self._add(source, line, network, task, product, channels_last, seconds)
        return ""

    def read_gavel(self, path: Path) -> None:
        self._file = path.stem
        line = self._catalog.find(_GAVEL_MODEL)
        assert line is not None  # noqa: S101 - the catalog has it
        network = self._network(line, 224)
        assert network is not None  # noqa: S101
        seen = set()
        for row in _rows(path):
            named, key = _GAVEL_JOB.fullmatch(row["jobA"]), (row["jobA"], row["gpu"])
            if key in seen:
                continue
            seen.add(key)
            rate = float(row["tputA_iso"])
            if named is None or rate <= 0 or row["gpu"] not in _GAVEL_GPUS:
                self.found.left_out["gavel: unknown network, several GPUs, or it did not run"] += 1
                continue
            task = Task(Level.NAME, model=line.name, batch_size=int(named[1]), precision=Precision.FP32)
            self._add("gavel", line, network, task, Product(_GAVEL_GPUS[row["gpu"]]), False, 1.0 / rate)

    def _add(
        self, source: str, line: Line, network: Description, task: Task, product: Product, channels_last: bool,
        seconds: float,
    ) -> None:  # fmt: skip
        assert product in PEAKS  # noqa: S101
        bare = line.name.partition("/")[2]
        group = self._modules.get(bare, bare)
        run = SpeedRun(source, group, line.name, network, task, product, channels_last, seconds, self._file)
        self.found.runs.append(run)

    def _network(self, line: Line, side: int) -> Description | None:
        if (line.name, side) not in self._networks:
            try:
                named = self._catalog.describe(line.name, (3, side, side), None)
            except InvalidTask:
                return None
            self._networks[line.name, side] = named.network
        return self._networks[line.name, side]


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)
