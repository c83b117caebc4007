"""`rangewatch.client` against a real server: runs, slices as arrays and frames, figures, errors, tokens."""

from __future__ import annotations

import base64
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rangewatch.client import Client, Run, ServerError, Unavailable
from rangewatch.report import colours, document
from rangewatch.report import plotly_figures as figures
from tests.server.process import Server
from tests.server.records import batch, catalogue, opening
from tests.server.tokens import create

KNOWN = catalogue(6)


def reported(server: Server) -> None:
    """Two ranks of 200 steps x 6 tensors: an Inf in one, a step in which another was not observed."""
    amax = np.full((6, 200), 1024.0)
    amax[1, 50] = 40_000.0
    inf_count, call_count = np.zeros((6, 200)), np.ones((6, 200))
    inf_count[3, 120] = 1
    call_count[0, 10] = amax[0, 10] = 0
    columns = {"amax": amax, "inf_count": inf_count, "call_count": call_count}
    for rank in range(2):
        server.post(opening(KNOWN, rank=rank, world_size=2))
        server.post(batch(KNOWN, 0, range(200), columns, rank=rank, series={"loss": 2.0}))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = Server(str(tmp_path_factory.mktemp("client") / "a.db"))
    reported(found)
    yield found
    found.stop()


@pytest.fixture
def run(server: Server) -> Run:
    return Client(server.url).run("run")


def test_a_run_is_found_by_name_number_or_as_the_newest(server: Server) -> None:
    client = Client(server.url)
    assert [client.run(each).id for each in ("run", 1, None)] == [1, 1, 1]
    assert repr(client.run()) == "<Run 1 'run', live, last step 199>"
    with pytest.raises(ServerError, match=r"no run 'x' at .*; there are: run"):
        client.run("x")


def test_a_slice_is_arrays(run: Run) -> None:
    found = run.slice(["amax", "headroom_bits"], start=40, stop=60)
    assert (found.rows, found.columns, found.array.shape) == ("tensor", "step", (6, 20))
    assert (found.array[1, 10], found.column_labels[10]) == (40_000.0, 50)
    assert found.values["headroom_bits"][1, 10] == pytest.approx(np.log2(65504 / 40_000), abs=0.02)
    whole = run.slice()
    assert np.isnan(whole.array[0, 10]) and whole.is_state("not_observed")[0, 10]
    assert np.argwhere(whole.is_state("inf")).tolist() == [[3, 120]]
    with pytest.raises(ValueError):
        whole.is_state("no such")
    assert run.slice("amax", "step,rank", tensor=1).row_labels == [0, 1]
    assert run.slice("amax", "rank,tensor", step=5).array.shape == (2, 6)
    assert run.slice(q="no such name").array.shape == (0, 200)


def test_a_slice_as_a_frame(run: Run) -> None:
    import pandas
    import polars

    found = run.slice(["amax", "inf_count"], start=100, stop=150, kind="output")
    frame = found.to_pandas("inf_count")
    assert isinstance(frame, pandas.DataFrame) and frame.index.name == "tensor" and frame.columns.name == "step"
    assert frame.loc[found.row_labels[1], 120] == 2.0  # of both ranks
    other = found.to_polars()
    assert isinstance(other, polars.DataFrame) and other.shape == (2, 51) and other["120"][0] == 1024.0
    with pytest.raises(KeyError, match="no 'rms' in this slice; it has amax, inf_count"):
        found.to_pandas("rms")


def test_a_frame_has_every_observed_cell(run: Run) -> None:
    one, other = (
        run.frame(statistic=["amax", "inf_count"]),
        run.frame(statistic=["amax", "inf_count"], library="polars"),
    )
    assert len(one) == len(other) == 2 * (6 * 200 - 1)
    assert one["amax"].max() == other["amax"].max() == 40_000.0
    assert one.loc[one["inf_count"] > 0, "step"].tolist() == [120, 120]
    assert set(one["fqn"].unique()) == set(other["fqn"].unique().to_list())
    with pytest.raises(ValueError, match="'pandas' or 'polars', not 'arrow'"):
        run.frame(library="arrow")


def test_every_figure_of_the_server_is_plotly(run: Run) -> None:
    """Each that the server lists, whoever added it."""
    names = run.figures()
    assert {"loss", "layers", "timeline", "tensor", "ranks", "step_time", "exponents", "phases"} <= set(names)
    assert all(names.values())
    for name in names:
        found = run.figure(name, tensor=1, columns=100, q="loss" if name == "series" else None)
        assert found.layout.title.text == f"run: {name}"
        assert found.to_json()


def test_a_heatmap_has_the_pages_scale_rows_and_marks(run: Run) -> None:
    found = run.figure("layers", rank=0)
    heat, marks, ticks = found.data
    assert (heat.zmin, heat.zmax, heat.colorscale[0][1], heat.colorscale[-1][1]) == (0, 16, "#7a0403", "#a9c7dd")
    assert np.argwhere(np.isfinite(marks.z)).tolist() == [[3, 120]] and marks.text[3][120] == "inf"
    assert (marks.x0, marks.dx, marks.colorscale[0][1]) == (heat.x0, heat.dx, "#e6007a")
    assert found.layout.yaxis.ticktext[3] == run.tensors()[3]["label"]
    assert (list(ticks.x), ticks.marker.symbol) == ([120], "triangle-down")  # a shape, besides the colour


def test_a_tensor_has_its_dtypes_limits_and_loss_its_own_range(run: Run) -> None:
    found = run.figure("tensor", tensor=1)
    assert (found.layout.yaxis.type, [each.mode for each in found.data[:2]]) == ("log", ["lines", "markers"])
    assert found.layout.shapes[0].y0 == 65504.0
    assert found.layout.shapes[0].label.text == "max finite float16, 6.55e+04"
    assert list(run.figure("ranks", start=5, stop=6).layout.xaxis.ticktext) == [each["label"] for each in run.tensors()]


def _served(name: str, **meta: object) -> dict[str, object]:
    z = {"dtype": "f4", "bdata": base64.b64encode(np.array([[-3.0, 0.0]], "<f4").tobytes()).decode(), "shape": "1, 2"}
    return {"figure": {"data": [{"name": name, "x0": 0, "dx": 1, "z": z}]}, "meta": meta}


def test_a_heatmap_that_is_not_of_headroom_keeps_its_own_scale() -> None:
    def drawn(name: str, title: str, scale: str, low: float, high: float) -> Any:
        statistic = {"name": name, "title": title, "scale": scale, "worst": "most", "low": low, "high": high}
        return figures.of_answer(_served(name, statistic=statistic), "").data[0]

    shares = drawn("share", "Share of the elements", "log10", -6, 0)
    assert (shares.zmin, shares.zmax, shares.colorscale) == (-6, 0, colours.SHARE)
    assert shares.colorbar.title.text == "Share of the elements, log10"
    waits = figures.of_answer(_served("wait_s", unit="s"), "").data[0]
    assert (waits.colorscale[0][1], waits.colorbar.title.text, waits.zmin, waits.zmax) == ("#a9c7dd", "s", 0, None)
    assert drawn("amax", "Largest magnitude", "log2", -24, 16).colorbar.title.text == "Largest magnitude, log2"
    difference = drawn("difference_bits", "Difference in headroom", "bits", -8, 8)
    assert (difference.zmin, difference.zmax, difference.colorscale) == (-8, 8, colours.DIFFERENCE)


def test_the_colours_are_those_of_the_pages() -> None:
    web = Path(__file__).parents[3] / "web"
    css, script = (web / "styles" / "style.css").read_text(), (web / "charts" / "colours.js").read_text()
    both = r"light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)"
    of = {name: (light, dark) for name, light, dark in re.findall(rf"--([\w-]+): {both}", css)}

    def scale(name: str) -> list[tuple[str, str]]:
        return re.findall(both, re.search(rf"const {name} = \[(.*?)\]", script, re.DOTALL)[1])  # type: ignore[index]

    headroom = [*scale("HEADROOM"), of["calm"]]
    assert headroom == list(zip(colours.HEADROOM, document.DARK_HEADROOM, strict=True))
    assert [light for light, _ in scale("MAGNITUDE")] == list(colours.SEQUENTIAL)
    lines = [of[name] for name in ("accent", "warning", "second", "ok", "muted", "bad")]
    assert lines == list(zip(colours.LINES, document.DARK_LINES, strict=True))
    assert [of[f"p{at}"][0] for at in range(6)] == list(colours.PHASES.values())
    assert of["nonfinite"] == (colours.NONFINITE, document.DARK_NONFINITE)
    for name in document.LIGHT:
        assert of[name] == (document.LIGHT[name], document.DARK[name]), name


def test_facts_and_findings(run: Run) -> None:
    assert run.details()["first_overflow"]["step"] == 120
    assert run.step(120)["first_nonfinite"] == 3
    assert [each["rule"] for each in run.diagnosis()["findings"]] == ["first_nonfinite"]
    assert run.diagnosis(stop=100)["findings"] == []
    assert isinstance(run.alerts(), list) and run.loss_scale()["drops"] == [] and run.gpus()["gpus"] == []
    assert run.collectives()["verdict"] is None and run.environment()["ranks"] is not None
    with pytest.raises(ServerError, match="columns"):
        run.figure("layers", columns=0)


def test_a_token_is_sent_and_asked_for(start_server: Callable[..., Server], tmp_path: object) -> None:
    db = f"{tmp_path}/t.db"
    token = create(db, "ana", "view")
    server = start_server(db=db)
    with pytest.raises(ServerError, match="token"):
        list(Client(server.url).runs())
    assert list(Client(server.url, token).runs()) == []
    with pytest.raises(ServerError, match="printable ASCII"):
        Client(server.url, "a\nb")


def test_no_server_and_another_one(server: Server) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(Unavailable, match="no Rangewatch server answers"):
            Client(f"http://127.0.0.1:{free.getsockname()[1]}").run()
    with pytest.raises(ServerError, match="url"):
        Client("no url")


def test_nothing_optional_is_loaded_before_it_is_asked_for(server: Server) -> None:
    """The agent's own dependencies are enough for all but frames and figures; what is missing is named."""
    code = (
        "import sys\n"
        "for name in ('pandas', 'polars', 'pyarrow', 'plotly', 'torch'): sys.modules[name] = None\n"
        "from rangewatch.client import Client\n"
        f"run = Client({server.url!r}).run()\n"
        "print(run.slice().array.shape)\n"
        "for call in (run.frame, lambda: run.frame(library='polars'), lambda: run.figure('loss')):\n"
        "    try: call()\n"
        "    except ImportError as error: print(error)\n"
    )
    reported = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={k: v for k, v in os.environ.items() if k != "RANGEWATCH_TOKEN"},
    )  # fmt: skip
    assert reported.stdout.splitlines() == [
        "(6, 200)",
        "pandas is not installed: pip install pandas",
        "polars is not installed: pip install polars",
        "plotly.graph_objects is not installed: pip install plotly",
    ]


@pytest.mark.slow
def test_every_block_of_the_docs_runs(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[3] / "docs" / "client.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 5
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(block.replace("http://127.0.0.1:8642", server.url).replace('"t5-base"', '"run"'), names)
    assert (tmp_path / "layers.html").stat().st_size > 1_000
