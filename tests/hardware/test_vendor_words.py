"""The vendor table is the one place that knows vendors: elsewhere in service/ their words need a reason."""

from __future__ import annotations

import re
from pathlib import Path

from vramcast.hardware.products import PRODUCTS

SERVICE = Path(__file__).parents[2] / "service/vramcast"
WORDS = re.compile(r"nvidia|dcgm|cuda|\bamd\b|rocm|\bhip|rocr_", re.IGNORECASE)

# A file or a directory, and why its words are not the table's.
ALLOWED = {
    "hardware/": "the table and the products",
    "admission/": "fields of other systems, and variables that runtimes read",
    "advice/lines.py": "torch.cuda is PyTorch's name for any GPU",
    "agent/": "NVML is the library of one vendor",
    "api/admit.py": "the table's own constant",
    "cli/describing.py": "an example in a help text",
    "cli/manifests.py": "a hint that shows the variable most users need",
    "cli/recommend/": "series and settings of the exporter that clusters have",
    "cli/recommending.py": "the exporter that it needs, in a help text",
    "cli/records.py": "the name of a counter in the recordings' format",
    "cluster/static_file.py": "the example in its docstring",
    "demo/": "the cluster of the demo, and short product names on its screen",
    "forecast/": "the CUDA context and PyTorch's allocator, on which the physics were measured",
    "names.py": "an example",
    "outcomes/agent_series.py": "the exporter whose units it has",
    "placement/remedies.py": "labels and tools of the usual vendor, as advice to people",
    "placement/claimable.py": "an example of what drivers write",
    "profile/": "torch.cuda is PyTorch's name for any GPU; --measure needs nvidia-smi",
    "recommend/": "names of resources in kube-state-metrics, and settings of the exporter",
    "report/": "torch.cuda is PyTorch's name for any GPU",
    "settings.py": "the name of a driver's device class",
    "task/vocabulary.py": "an example in a help text",
    "train/": "the products of the recordings",
}


def test_vendor_words_stay_in_the_table() -> None:
    products = re.compile("|".join(map(re.escape, sorted(PRODUCTS, key=len, reverse=True))))
    found = [
        f"{path.relative_to(SERVICE)}:{number}: {line.strip()}"
        for path in sorted(SERVICE.rglob("*.py"))
        if not str(path.relative_to(SERVICE)).startswith(tuple(ALLOWED))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if WORDS.search(products.sub("", line))
    ]
    assert found == [], "move it to hardware/vendors.py, or add the file to ALLOWED with a reason"


def test_every_exception_still_exists() -> None:
    assert [name for name in ALLOWED if not (SERVICE / name).exists()] == []
