"""The report in every format, and its patches."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
import yaml
from rich.console import Console

from tests.recommend.samples import sample_report
from vramcast.cli.recommend.page import to_html
from vramcast.cli.recommend.patches import file_name, patch_of, write_patches
from vramcast.cli.recommend.plots import binned
from vramcast.cli.recommend.rows import COLUMNS, as_data
from vramcast.cli.recommend.text import print_table, to_csv, to_markdown
from vramcast.errors import InvalidInput
from vramcast.recommend.packing import Occupancy
from vramcast.recommend.report import Report
from vramcast.task.pod import Pod, to_record
from vramcast.task.quantity import human_mib


@pytest.fixture(scope="module")
def report() -> Report:
    return sample_report()


def test_the_table_shows_every_workload_and_what_is_freed(report: Report) -> None:
    text = io.StringIO()
    print_table(report, Console(file=text, width=180))
    shown = text.getvalue()
    assert all(one.workload.label in shown for one in report.recommendations)
    assert all(human_mib(one.need.mib) in shown for one in report.recommendations)
    for words in ("share, 13% of a GPU, or MIG 1g.20gb", "ask for 1 of 4 GPUs", "see notes", "keep", "MIG 1g.10gb"):
        assert words in shown
    assert "note: the local clock is 90 s ahead" in shown
    assert re.search(rf"with shares +{report.shared.most} +{report.as_it_was.most - report.shared.most} ", shown)


def test_a_narrow_terminal_loses_no_number(report: Report) -> None:
    text = io.StringIO()
    print_table(report, Console(file=text, width=100))
    assert "…" not in text.getvalue()


def test_json_and_csv_have_the_same_figures(report: Report) -> None:
    data = json.loads(json.dumps(as_data(report)))
    rows = list(csv.DictReader(io.StringIO(to_csv(report))))
    assert [row["name"] for row in rows] == [one["name"] for one in data["workloads"]]
    for name in ("peak_mib", "need_mib", "runs", "asked_gpus", "gpu_hours", "spare_gpu_hours", "verdict"):
        assert [row[name] for row in rows] == [str(one[name]) for one in data["workloads"]]
    assert data["plans"]["as it was"]["gpus_at_busiest"] == report.as_it_was.most
    assert data["plans"]["with shares"]["gpus_freed"] == report.as_it_was.most - report.shared.most


def test_the_markdown_is_a_table(report: Report) -> None:
    lines = to_markdown(report).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert {line.count("|") for line in table[: len(report.recommendations) + 2]} == {len(COLUMNS) + 1}
    assert table[0] == "| " + " | ".join(COLUMNS) + " |"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] += 1
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_one_file_that_fetches_nothing_and_quotes_names(report: Report) -> None:
    html = to_html(report)
    page = Tags()
    page.feed(html)
    assert page.links == []
    assert (page.seen["script"], page.seen["link"], page.seen["img"]) == (0, 0, 0)
    assert "url(" not in html
    assert "@import" not in html
    assert page.seen["tr"] == len(report.recommendations) + len(report.plans) + 2
    assert "time-sliced <b>&" in page.text
    assert page.seen["b"] == len(report.plans)


def test_a_plot_shows_the_most_of_each_part_of_the_time() -> None:
    plan = Occupancy([(0.0, 1), (10.0, 5), (11.0, 2), (50.0, 0)])
    assert binned(plan, 0.0, 100.0, 10) == [1, 5, 2, 2, 2, 0, 0, 0, 0, 0]
    assert binned(Occupancy(), 0.0, 100.0, 4) == [0, 0, 0, 0]


def by_name(report: Report, name: str) -> dict[str, object]:
    (one,) = [one for one in report.recommendations if one.workload.name == name]
    patch = patch_of(one)
    assert patch is not None
    return patch


def test_a_patch_shares_a_gpu_and_takes_the_device_away(report: Report) -> None:
    (one,) = [one for one in report.recommendations if one.workload.name == "serve"]
    gone = {"nvidia.com/gpu": None}
    assert by_name(report, "serve") == {
        "spec": {
            "template": {
                "metadata": {
                    "annotations": {"vramcast.dev/gpu-memory": f"{one.need.mib}Mi", "vramcast.dev/share": "true"}
                },
                "spec": {"containers": [{"name": "main", "resources": {"limits": gone, "requests": gone}}]},
            }
        }
    }


def test_a_cron_jobs_patch_is_for_its_job_template(report: Report) -> None:
    patch = by_name(report, "nightly")
    assert list(patch["spec"]["jobTemplate"]["spec"]["template"]) == ["metadata", "spec"]  # type: ignore[index]


def test_a_workload_that_keeps_its_gpu_is_told_its_memory_only(report: Report) -> None:
    patch = by_name(report, "train")
    assert list(patch["spec"]["template"]) == ["metadata"]  # type: ignore[index]
    assert list(patch["spec"]["template"]["metadata"]["annotations"]) == ["vramcast.dev/gpu-memory"]  # type: ignore[index]


def test_what_is_guessed_unclear_sliced_or_an_operators_has_no_patch(report: Report, tmp_path: Path) -> None:
    written, without = write_patches(report, tmp_path / "new")
    names = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert names == [
        "ml.cronjob.nightly.NVIDIA-A100-SXM4-80GB.yaml", "ml.deployment.serve.NVIDIA-A100-SXM4-80GB.yaml",
        "ml.job.train.NVIDIA-A100-SXM4-80GB.yaml", "ml.pod.idle.NVIDIA-A100-SXM4-80GB.yaml",
    ]  # fmt: skip
    assert (written, without) == (4, len(report.recommendations) - 4)


def test_a_patch_file_says_what_it_rests_on_and_how_to_apply_it(report: Report, tmp_path: Path) -> None:
    write_patches(report, tmp_path)
    serve = (tmp_path / "ml.deployment.serve.NVIDIA-A100-SXM4-80GB.yaml").read_text()
    assert "at most 8.8 GiB in 3 runs, needs" in serve.splitlines()[0]
    assert "kubectl --namespace ml patch deployment serve --patch-file" in serve.splitlines()[1]
    job = (tmp_path / "ml.job.train.NVIDIA-A100-SXM4-80GB.yaml").read_text()
    assert "kubectl patch --local --filename job.yaml" in job.splitlines()[1]


def test_the_patched_pod_is_described_without_mistakes(report: Report) -> None:
    template = yaml.safe_load(yaml.safe_dump(by_name(report, "serve")))["spec"]["template"]
    pod = {
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "ml", "uid": "u", **template["metadata"]},
        "spec": {"containers": [{"name": "main"}]},
    }
    assert to_record(msgspec.convert(pod, Pod)).invalid is None


def test_a_directory_that_cannot_be_written_is_a_clear_error(report: Report, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match=r"--patch .*file.*cannot be written"):
        write_patches(report, tmp_path / "file")


def test_names_of_files_have_no_odd_characters(report: Report) -> None:
    assert all(re.fullmatch(r"[\w.-]+", file_name(one)) for one in report.recommendations)
