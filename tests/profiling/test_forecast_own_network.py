"""`vramcast forecast` and `advise` of a configuration file, or of a callable, where torch is installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vramcast.cli.main import app

CONFIGURATION = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 160,
    "max_position_embeddings": 512,
}  # fmt: skip


@pytest.mark.parametrize("command", ["forecast", "advise"])
def test_a_configuration_file_is_recorded_and_forecast(tmp_path: Path, command: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGURATION))
    run = [command, str(path), "--batch-size", "4", "--sequence-length", "256", "--precision", "bf16", "--gpu", "L40S"]
    done = CliRunner().invoke(app, run)
    assert done.exit_code == 0, done.output
    assert "L40S" in done.output
    assert 'vramcast.dev/batch-size: "4"' in done.output


def test_a_callable_is_traced_and_ends_with_the_annotations_to_paste(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_network.py").write_text(
        "from torch import nn\n\n\ndef make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    run = ["forecast", "own_network:make", "--input-size", "3x8x8", "--batch-size", "32", "--gpu", "L40S"]
    done = CliRunner().invoke(app, run)
    assert done.exit_code == 0, done.output
    assert "vramcast.dev/profile:" in done.output
