"""No secret leaves the process: not in the text of an exception, not in a variable that begins like a known one."""

from __future__ import annotations

import pytest
import torch

import rangewatch
from rangewatch.checks.doctor.machine import Machine
from rangewatch.checks.doctor.variable_names import NAMES
from rangewatch.checks.doctor.variables import variables
from rangewatch.core.redaction import HIDDEN, redacted
from tests.agent.ingest_double import IngestDouble

SECRET = "Zx9kQ2vL7pTn4RwY8sBd"
LONG = SECRET * 2
TEXTS = [
    f"cannot connect to postgresql://trainer:{SECRET}@db.example.org:5432/runs",
    f"redis://:{SECRET}@cache:6379 refused",
    f"401 Client Error for url: https://hub.example.org/api?token={SECRET}&revision=main",
    f"https://storage.example.org/blob?sv=2024-01-01&sig={SECRET}%3D",
    f"https://bucket.example.org/x?X-Amz-Credential=AKIAABCDEFGHIJKLMNOP&X-Amz-Signature={LONG}",
    f"https://api.example.org/v1?key={SECRET}",
    f"hf_{LONG} is not valid",
    f"Authorization: Bearer {LONG}",
    f"authorization: bearer {SECRET}.{SECRET}",
    f"aws_secret_access_key={LONG}",
    f"{{'aws_secret_access_key': '{LONG}'}}",
    f'{{"password": "{SECRET}"}}',
    f"ghp_{LONG}",
    f"sk-{LONG}",
    f"POST https://hooks.slack.com/services/T0AB/B0CD/{SECRET}: 404",
    f"https://discord.com/api/webhooks/1234567890/{SECRET}",
    f"TORCH_PW={SECRET}",
    f"pw: {SECRET}",
    f"eyJhbGciOiJIUzI1NiJ9abcdefgh.{LONG}.{LONG}",
]
PLAIN = [
    "CUDA out of memory. Tried to allocate 2.00 GiB", "max_tokens=128, eos_token='</s>'",
    "tokenizer: bert-base-uncased",
    "mat1 and mat2 shapes cannot be multiplied (4x8 and 16x4)", "https://example.org/a?revision=main&page=2",
    "KeyError: 'lm_head.weight'", "forward_pass=3, mpw=2", "see https://hooks.slack.com/services/",
    "expected key: blocks.0.attn.key.weight",
]  # fmt: skip
PLANTED = (
    "TORCH_PW", "DS_WEBHOOK", "NCCL_MY_LOGIN", "CUDA_LICENSE", "NVIDIA_NGC_CLI", "ACCELERATE_LOGIN", "DEEPSPEED_SLACK",
    "TRITON_REMOTE", "FI_PASS", "UCX_USER", "OMP_MINE", "MKL_LICENSE_FILE", "GLOO_X", "KINETO_X", "TORCHX_TRACKER",
    "PYTORCH_HUB_LOGIN", "NVTE_X", "CUBLAS_X", "CUDNN_X", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY",
    "TORCH_AUTH_TOKEN", "NCCL_SECRET", "DATABASE_URL",
)  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_secrets_are_hidden(text: str) -> None:
    found = redacted(text)
    assert SECRET not in found and "AKIAABCDEF" not in found and HIDDEN in found


@pytest.mark.parametrize("text", PLAIN)
def test_what_is_none_stays(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize("text", TEXTS[:8])
def test_the_exception_that_ends_a_run_is_sent_without_them(ingest: IngestDouble, text: str) -> None:
    model = torch.nn.Linear(2, 2)
    with pytest.raises(RuntimeError), rangewatch.attach(model, url=ingest.url, collect=()):
        raise RuntimeError(text)
    (event,) = ingest.events("failed")
    assert SECRET not in event.message and HIDDEN in event.message


def test_a_secret_across_the_cut_is_hidden_too(ingest: IngestDouble) -> None:
    with pytest.raises(RuntimeError), rangewatch.attach(torch.nn.Linear(2, 2), url=ingest.url, collect=()):
        raise RuntimeError("x" * 970 + f" postgresql://trainer:{SECRET}@db/runs")
    assert SECRET[:6] not in ingest.events("failed")[0].message


def test_values_of_variables_are_sent_by_whole_names_alone() -> None:
    shown = variables(Machine(environ=dict.fromkeys(PLANTED, SECRET) | {"NCCL_DEBUG": "INFO", "NCCL_IB_PKEY": "3"}))
    assert SECRET not in str(shown)
    assert shown["NCCL_DEBUG"] == "INFO" and shown["NCCL_IB_PKEY"] == "3" and shown["TORCH_PW"] == HIDDEN


def test_no_known_name_is_of_a_secret() -> None:
    assert not [each for each in NAMES if any(word in each for word in ("TOKEN", "SECRET", "PASSW", "WEBHOOK", "_PW"))]
