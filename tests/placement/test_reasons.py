from __future__ import annotations

import re

import pytest

from vramcast.placement.reasons import Reason, reason_text

WITHOUT_TEXT = {Reason.FITS, Reason.INVALID_TASK}


@pytest.mark.parametrize("reason", [r for r in Reason if r not in WITHOUT_TEXT])
def test_every_reason_fits_into_the_schedulers_message(reason: Reason) -> None:
    text = reason_text(reason, need_mib=12 * 1024, count=2, resource="nvidia.com/gpu")
    assert text == text.strip()
    assert text[-1] != "."
    assert "{" not in text


@pytest.mark.parametrize("reason", [r for r in Reason if r not in WITHOUT_TEXT])
def test_a_pod_gets_the_same_text_on_every_node(reason: Reason) -> None:
    """kube-scheduler groups nodes by text, so numbers may come from the pod but never from the node."""
    numbers = re.findall(r"\d+(?:\.\d+)?", reason_text(reason, need_mib=12 * 1024, count=2))
    assert set(numbers) <= {"12.0", "2"}


def test_a_need_on_several_gpus_includes_their_number() -> None:
    assert reason_text(Reason.TOO_SMALL, 12 * 1024, 2) == "GPU too small for 12.0 GiB on each of 2 GPUs"
    assert reason_text(Reason.TOO_SMALL, 512) == "GPU too small for 512 MiB"


def test_labels_are_pinned_because_dashboards_use_them() -> None:
    assert [reason.label for reason in Reason] == [
        "fits", "unknown_node", "no_gpu", "memory_unknown", "not_sharing", "sharing", "too_few_gpus", "too_small",
        "mixed", "held", "unmanaged", "no_room", "invalid_task", "undescribed", "too_slow",
    ]  # fmt: skip
