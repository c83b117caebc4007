"""`attach` and the handle: wrong arguments, options, names of modules, copies, fork, and what is left afterwards."""

from __future__ import annotations

import copy
import gc
import io
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rangewatch
from rangewatch.api.attachment import ranks, run_name
from rangewatch.core import limits
from rangewatch.core.options import Options, resolve
from rangewatch.delivery.sender import THREAD
from rangewatch.recording.tensor_names import clean_modules, clean_parameters
from tests import forked
from tests.agent.ingest_double import IngestDouble


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


class Unscaler:
    def update(self) -> None: ...


class TestWrongArguments:
    @pytest.mark.parametrize(
        ("arguments", "error", "text"),
        [
            (lambda: (nn.ReLU(),), ValueError, "no parameters"),
            (lambda: ("model",), TypeError, r"torch\.nn\.Module, not str"),
            (lambda: (net(), "sgd"), TypeError, "not a torch.optim.Optimizer"),
            (lambda: (torch.compile(net(), backend="eager"),), ValueError, "attach before compiling"),
            (lambda: (_compiled_in_place(),), ValueError, "attach before compiling"),
            (lambda: (nn.Sequential(_compiled_in_place()),), ValueError, "0 is compiled already"),
        ],
    )
    def test_model_and_optimizer(self, arguments: Any, error: type[Exception], text: str) -> None:
        with pytest.raises(error, match=text):
            rangewatch.attach(*arguments())

    def test_an_optimizer_of_master_weights_trains_with_a_warning(
        self, ingest: IngestDouble, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The loop copies gradients to float32 copies and the copies back: each of its steps ends one."""
        model = net().bfloat16()
        masters = [each.detach().float().requires_grad_() for each in model.parameters()]
        optimizer = torch.optim.SGD(masters, lr=0.1)
        with rangewatch.attach(model, optimizer, url=ingest.url) as handle:
            assert "has none of the model's parameters" in caplog.text
            for _ in range(3):
                model(torch.ones(2, 2).bfloat16()).float().sum().backward()
                for master, parameter in zip(masters, model.parameters(), strict=True):
                    assert parameter.grad is not None
                    master.grad = parameter.grad.float()
                optimizer.step()
            assert handle.stats()["step"] == 3

    def test_a_scaler_without_its_methods(self) -> None:
        with pytest.raises(TypeError, match="no method 'scale'"):
            rangewatch.attach(net(), scaler=Unscaler())

    def test_attached_twice(self, ingest: IngestDouble) -> None:
        model = net()
        with rangewatch.attach(model, url=ingest.url):
            with pytest.raises(ValueError, match="attached already"):
                rangewatch.attach(model, url=ingest.url)
            with pytest.raises(ValueError, match="attached already"):
                rangewatch.attach(nn.Sequential(model), url=ingest.url)
        rangewatch.attach(model, url=ingest.url).detach()

    @pytest.mark.parametrize(
        "url",
        ["localhost:8642", "ftp://host", "http://", "http://host:port", "http://host:99999", "", "http://user:pw@host",
         "http://:pw@host", "http://@host",
         "http://host/?x=1", "http://ho st", "http://host\n", 7],
    )  # fmt: skip
    def test_urls(self, url: Any) -> None:
        with pytest.raises(ValueError, match="url"):
            rangewatch.attach(net(), url=url)

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("kinds", ["outputs"]), ("kinds", []), ("kinds", ["output", 3]), ("full_every", 0), ("full_every", 2.5),
            ("full_every", True), ("ship_interval_s", -1), ("ship_interval_s", "1"), ("ship_interval_s", float("nan")),
            ("start_step", -1), ("enabled", "maybe"), ("queue_bytes", 10), ("backend", "gpu"), ("run", ""),
            ("run", "a\nb"), ("run", "x" * 201), ("token", "caf\u00e9"), ("flush_timeout_s", -0.1),
        ],
    )  # fmt: skip
    def test_options(self, option: str, value: Any) -> None:
        with pytest.raises(ValueError, match=option):
            rangewatch.attach(net(), **{option: value})

    def test_a_wrong_argument_leaves_nothing_behind(self) -> None:
        model = net()
        with pytest.raises(TypeError, match="Optimizer"):
            rangewatch.attach(model, "sgd")
        assert not any(module._forward_hooks for module in model.modules())


def _compiled_in_place() -> nn.Module:
    model = net()
    model.compile(backend="eager")
    return model


class TestOptions:
    def test_argument_then_environment_then_default(self) -> None:
        environment = {"RANGEWATCH_FULL_EVERY": "7", "RANGEWATCH_KINDS": "grad, output", "RANGEWATCH_RUN": "mine"}
        options = resolve({"full_every": 3, "run": None}, environment)
        assert (options.full_every, options.kinds, options.run) == (3, ("grad", "output"), "mine")
        assert options.ship_interval_s == Options().ship_interval_s

    @pytest.mark.parametrize("name", ["FULL_EVERY", "SHIP_INTERVAL_S", "ENABLED", "URL", "KINDS"])
    def test_a_wrong_variable_is_named(self, name: str) -> None:
        with pytest.raises(ValueError, match=f"(RANGEWATCH_{name}|{name.lower()})"):
            resolve({}, {f"RANGEWATCH_{name}": "nonsense://"})

    def test_disabled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RANGEWATCH_ENABLED", "0")
        model, threads = net(), threading.active_count()
        with rangewatch.attach(model) as handle:
            handle.log(loss=1.0)
            handle.step()
            assert (handle.run, handle.url, handle.stats()) == ("", "", {})
        assert threading.active_count() == threads
        assert not any(module._forward_hooks for module in model.modules())

    def test_the_token_is_sent_and_never_shown(self, ingest: IngestDouble) -> None:
        with rangewatch.attach(net(), url=ingest.url, token="s3cret") as handle:
            assert "s3cret" not in repr(handle._agent.options)
        assert {request["Authorization"] for request in ingest.requests} == {"Bearer s3cret"}
        assert {request["Content-Type"] for request in ingest.requests} == {"application/zstd"}
        assert "s3cret" not in repr([batch.events for batch in ingest.batches])


class TestIdentity:
    def test_torchruns_environment(self) -> None:
        assert ranks({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}) == (3, 8, 1)
        assert ranks({}) == (0, 1, 0)
        assert ranks({"RANK": "x", "WORLD_SIZE": "-1"}) == (0, 1, 0)

    def test_run_names(self) -> None:
        assert run_name(1, {"TORCHELASTIC_RUN_ID": "job7"}).endswith("-job7")
        assert run_name(1, {"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "42"}).endswith("-42")
        uuid = "a1b2c3d4-0000-4000-8000-000000000000"
        assert run_name(1, {"TORCHELASTIC_RUN_ID": uuid}).endswith("-a1b2c3d4")

    def test_a_rank_that_cannot_agree_says_so(self, caplog: pytest.LogCaptureFixture) -> None:
        run_name(2, {})
        assert "init_process_group" in caplog.text

    def test_each_attach_is_an_incarnation(self, ingest: IngestDouble) -> None:
        model = net()
        for _ in range(2):
            with rangewatch.attach(model, url=ingest.url, run="again") as handle:
                assert (handle.run, handle.url) == ("again", ingest.url)
        infos = {opening.info.incarnation: opening.info for opening in ingest.openings}
        assert len(infos) == 2
        info = next(iter(infos.values()))
        assert (info.run, info.rank, info.world_size, info.pid) == ("again", 0, 1, os.getpid())
        assert info.versions["torch"] == torch.__version__


class TestSeveralModels:
    def test_each_is_a_run_of_its_own(self, ingest: IngestDouble, caplog: pytest.LogCaptureFixture) -> None:
        models = [nn.Linear(1, 1) for _ in range(3)]
        handles = [rangewatch.attach(model, sgd(model), url=ingest.url, run="gan") for model in models]
        assert [handle.run for handle in handles] == ["gan", "gan/Linear", "gan/Linear-2"]
        assert caplog.text.count("another model of this process") == 2
        wrapped, critic = DistributedDataParallel(net()), net()
        other = rangewatch.attach(wrapped, url=ingest.url, run="gan")
        assert other.run == "gan/Sequential", "the class of what is wrapped"
        apart = rangewatch.attach(critic, url=ingest.url, run="critic")
        assert apart.run == "critic", "a name that is given and free is kept"
        for handle in [*handles, other, apart]:
            handle.detach()
        assert {opening.info.run for opening in ingest.openings} == {
            "gan", "gan/Linear", "gan/Linear-2", "gan/Sequential", "critic"
        }  # fmt: skip

    def test_the_name_is_free_again_after_detach(self, ingest: IngestDouble) -> None:
        first, other = net(), net()
        for _ in range(2):
            with rangewatch.attach(first, url=ingest.url, run="r" * limits.NAME_CHARACTERS) as handle:
                assert handle.run == "r" * limits.NAME_CHARACTERS
                with rangewatch.attach(other, url=ingest.url, run="r" * limits.NAME_CHARACTERS) as second:
                    assert len(second.run) <= limits.NAME_CHARACTERS and second.run.endswith("/Sequential")


class DistributedDataParallel(nn.Module):
    """Stands for torch's: names are told by the class's name."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


class TestNames:
    def test_wrappers_are_stripped(self) -> None:
        inner = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
        holder = nn.Module()
        holder._checkpoint_wrapped_module = inner[1]
        inner[1] = holder
        model = DistributedDataParallel(inner)
        names = clean_modules(model)
        assert list(names) == ["", "0", "1", "1.0"]
        assert names[""] is inner and names["1"] is holder._checkpoint_wrapped_module
        assert [name for name, _ in clean_parameters(model)] == ["0.weight", "0.bias", "1.0.weight", "1.0.bias"]

    def test_a_child_that_is_called_module_keeps_its_name(self) -> None:
        model = nn.Module()
        model.module = nn.Linear(2, 2)
        assert list(clean_modules(model)) == ["", "module"]

    def test_root_is_the_empty_name(self, ingest: IngestDouble) -> None:
        model = DistributedDataParallel(nn.Linear(2, 1))
        model.forward = model.module.__call__
        with rangewatch.attach(model, url=ingest.url) as handle:
            model(torch.ones(1, 2))
            handle.step()
        assert list(ingest.tensors()) == [("", "output", 0)]
        assert ingest.entry("", "output").module == "Linear"


class TestCopies:
    """A copy of an attached model carries no working agent, and trains as the model does."""

    @staticmethod
    def assert_inert(clone: nn.Module, handle: rangewatch.Handle) -> None:
        before = handle.stats()
        clone(torch.ones(1, 2)).sum().backward()
        handle.step()
        assert handle.stats()["tensors"] == before["tensors"] == 0

    def test_deepcopy(self, ingest: IngestDouble) -> None:
        model = net()
        with rangewatch.attach(model, url=ingest.url) as handle:
            self.assert_inert(copy.deepcopy(model), handle)

    def test_save_and_load(self, ingest: IngestDouble) -> None:
        model, file = net(), io.BytesIO()
        with rangewatch.attach(model, url=ingest.url) as handle:
            torch.save(model, file)
            assert b"rangewatch" not in file.getvalue(), "the file must load where Rangewatch is not installed"
            file.seek(0)
            self.assert_inert(torch.load(file, weights_only=False), handle)

    def test_state_dict(self, ingest: IngestDouble) -> None:
        model = net()
        names = set(model.state_dict())
        with rangewatch.attach(model, url=ingest.url):
            assert set(model.state_dict()) == names


class TestEnds:
    def test_finished_is_the_last_event(self, ingest: IngestDouble) -> None:
        rangewatch.attach(net(), url=ingest.url).detach()
        kinds = [event.kind for batch in ingest.batches for event in batch.events]
        assert (kinds[0], kinds[-1], len(ingest.events("finished"))) == ("attached", "finished", 1)

    def test_a_clean_exit_is_finished(self, ingest: IngestDouble) -> None:
        with pytest.raises(SystemExit), rangewatch.attach(net(), url=ingest.url):
            raise SystemExit(0)
        kinds = [event.kind for batch in ingest.batches for event in batch.events]
        assert (kinds[0], kinds[-1], len(ingest.events("finished"))) == ("attached", "finished", 1)

    def test_detach_by_model_when_nobody_kept_the_handle(self, ingest: IngestDouble) -> None:
        model = net()
        rangewatch.attach(model, url=ingest.url)
        rangewatch.detach(model)
        assert len(ingest.events("finished")) == 1
        with pytest.raises(ValueError, match="not attached"):
            rangewatch.detach(model)

    def test_a_forgotten_model_is_freed(self, ingest: IngestDouble) -> None:
        model = net()
        alive = weakref.ref(model)
        handle = rangewatch.attach(model, sgd(model), url=ingest.url)
        model(torch.ones(1, 2)).sum().backward()
        del model
        gc.collect()
        assert alive() is None
        handle.detach()

    def test_detaching_twice_is_once(self, ingest: IngestDouble) -> None:
        handle = rangewatch.attach(net(), url=ingest.url)
        handle.detach()
        handle.detach()
        handle.log(loss=1.0)
        handle.step()
        assert len(ingest.events("finished")) == 1

    def test_a_failed_run_has_nothing_more_to_wait_for(
        self, ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its goodbye is empty; a second went by until the sender's thread saw that."""
        for name in ("LEFT_POLL_S", "HEARTBEAT_S"):
            monkeypatch.setattr(limits, name, 60.0)
        with pytest.raises(KeyError), rangewatch.attach(net(), url=ingest.url):
            raise KeyError("lost")
        assert len(ingest.events("failed")) == 1
        assert not [each for each in threading.enumerate() if each.name == THREAD]

    def test_an_exception_in_the_block(self, ingest: IngestDouble) -> None:
        with pytest.raises(KeyError), rangewatch.attach(net(), url=ingest.url):
            raise KeyError("lost")
        assert [event.message for event in ingest.events("failed")] == ["KeyError: 'lost'"]
        assert ingest.events("finished") == [], "a training that crashed has not finished"

    def test_detach_while_an_exception_is_on_its_way(self, ingest: IngestDouble) -> None:
        with pytest.raises(KeyError):
            try:
                handle = rangewatch.attach(net(), url=ingest.url)
                raise KeyError("lost")
            finally:
                handle.detach()
        assert [event.message for event in ingest.events("failed")] == ["KeyError: 'lost'"]
        assert ingest.events("finished") == []

    def test_detach_where_an_interrupt_is_caught(self, ingest: IngestDouble) -> None:
        handle = rangewatch.attach(net(), url=ingest.url)
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            handle.detach()
        (event,) = ingest.events("failed")
        assert event.data["interrupted"]

    def test_detach_where_nothing_of_the_training_failed(self, ingest: IngestDouble) -> None:
        try:
            raise RuntimeError("before attach")
        except RuntimeError:
            rangewatch.attach(net(), url=ingest.url).detach()
        handle = rangewatch.attach(net(), url=ingest.url)
        try:
            next(iter([]))
        except StopIteration:
            handle.detach()
        assert len(ingest.events("finished")) == 2
        assert ingest.events("failed") == []

    def test_messages_can_be_anything(self, ingest: IngestDouble) -> None:
        with pytest.raises(ValueError), rangewatch.attach(net(), url=ingest.url):
            raise ValueError("\ud800 \0" + "x" * 10_000)
        (event,) = ingest.events("failed")
        assert event.message.startswith("ValueError: ? ?xxx") and len(event.message) == limits.MESSAGE_CHARACTERS

    @pytest.mark.parametrize("fails", [False, True])
    def test_the_process_ends_without_detach(self, ingest: IngestDouble, fails: bool) -> None:
        script = f"""
import rangewatch, torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rangewatch.attach(model, optimizer, url={ingest.url!r}, ship_interval_s=3600)
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward(); optimizer.step()
{"raise ValueError('boom')" if fails else ""}
"""
        done = forked.rank.run("-c", script)
        assert done.returncode == int(fails) and "rangewatch:" not in done.stderr
        assert sorted(ingest.tensors()["", "output", 0]) == [0, 1, 2]
        assert [event.message for event in ingest.events("failed")] == ["ValueError: boom"] * fails
        assert len(ingest.events("finished")) == (not fails)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_nothing_of_ours(ingest: IngestDouble, tmp_path: Path) -> None:
    model = net()
    optimizer = sgd(model)
    with rangewatch.attach(model, optimizer, url=ingest.url, ship_interval_s=0) as handle:
        pid = os.fork()
        if pid == 0:
            try:
                model(torch.full((1, 2), 1e6)).sum()  # no backward: autograd does not survive a fork
                optimizer.step()
                handle.log(loss=1e6)
                steps, is_active = handle.stats()["step"], handle.is_active
                handle.detach()
                (tmp_path / "child").write_text(f"{steps} {is_active} {threading.active_count()}")
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        assert (tmp_path / "child").read_text() == "0 False 1"
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert 1e6 not in ingest.series("loss").values()
    assert list(ingest.tensors()["", "output", 0]) == [0]


def test_importing_the_wire_needs_no_torch() -> None:
    script = (
        "import sys, rangewatch.wire, rangewatch.wire.records, rangewatch.statistics; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_public_names() -> None:
    from rangewatch.api.attachment import attach

    assert rangewatch.attach is attach is rangewatch.attach
    assert rangewatch.NumericOverflow.__mro__[1] is rangewatch.TrainingStopped
    assert set(rangewatch.__all__) == {
        "Alert", "Handle", "NumericOverflow", "TrainingStopped", "__version__", "attach", "batch", "detach",
        "detect_overflow",
    }  # fmt: skip
    with pytest.raises(AttributeError, match="nothing"):
        _ = rangewatch.nothing
