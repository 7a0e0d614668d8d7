"""What the text of a script shows about how to start it."""

from __future__ import annotations

import pytest

from muster.controller.script_text import chooses_port, sets_before_torch, uses_dynamo


@pytest.mark.parametrize(
    "line",
    [
        'os.environ["TORCH_LOGS"] = "dynamo"',
        "os.environ['TORCH_LOGS']='dynamo'",
        'environ.setdefault("TORCH_LOGS", "dynamo")',
        'os.putenv("TORCH_LOGS", "dynamo")',
        'os.environ.update({"A": "1", "TORCH_LOGS": "dynamo"})',
        'os.environ.update(A="1", TORCH_LOGS="dynamo")',
    ],
)
def test_a_variable_set_before_torch_is_imported_is_found(line: str):
    assert sets_before_torch(f"import os\n{line}\nimport torch\n") == "TORCH_LOGS"


@pytest.mark.parametrize(
    "text",
    [
        'import torch\nos.environ["TORCH_LOGS"] = "dynamo"',
        'from torch import nn\nos.environ["TORCH_LOGS"] = "dynamo"',
        'import os\nprint(os.environ["TORCH_LOGS"])\nimport torch',
        'import os\nif os.environ["TORCH_LOGS"] == "x": pass\nimport torch',
        'import os\nos.environ["OMP_NUM_THREADS"] = "2"\nimport torch',
        'import os\nos.environ["TORCHINDUCTOR_CACHE_DIR"] = "/tmp/c"\nimport torch',
        'import os\nos.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"\nimport torch',
        "",
    ],
)
def test_what_has_no_effect_or_can_be_set_later_is_no_reason_for_fresh_interpreters(text: str):
    assert sets_before_torch(text) == ""


def test_a_script_that_never_names_torch_may_import_it_through_a_package():
    assert sets_before_torch('import os\nos.environ["PYTORCH_JIT"] = "0"\nimport lightning\n') == "PYTORCH_JIT"


def test_a_script_that_sets_the_master_port_opens_its_own_store():
    assert chooses_port('os.environ["MASTER_PORT"] = "12355"')
    assert chooses_port('os.environ.update(MASTER_PORT="12355")')
    assert chooses_port('dist.init_process_group("gloo", init_method="tcp://10.0.0.1:23456")')
    assert not chooses_port('os.environ.setdefault("MASTER_PORT", "12355")')
    assert not chooses_port('port = int(os.environ["MASTER_PORT"])')


def test_what_imports_the_compiler_is_found():
    assert uses_dynamo("model = DDP(model)") == "DDP"
    assert uses_dynamo("print(1)") == ""


def test_any_variable_of_the_compiler_counts():
    assert sets_before_torch('os.environ["TORCHINDUCTOR_MAX_AUTOTUNE_GEMM"] = "1"\nimport torch') != ""
