"""What a figure really shows: the numbers it was drawn from, and the pixels on the screen."""

from __future__ import annotations

import base64
import math
import re
from pathlib import Path

import numpy as np
from playwright.sync_api import Page

HEATMAP = """(figure) => {
  const { columns, z } = figure.cells;
  const bits = Array.from(z, (each) => (Number.isFinite(each) ? each : null));
  return figure.cells.rows.map((_, row) => bits.slice(row * columns, (row + 1) * columns));
}"""
PLACE = """(figure, [step, row]) => {
  const { xaxis: x, yaxis: y } = figure._fullLayout;
  const box = figure.getBoundingClientRect();
  const size = [Math.abs(x.d2p(1) - x.d2p(0)), Math.abs(y.d2p(1) - y.d2p(0))];
  return [box.left + x._offset + x.d2p(step), box.top + y._offset + y.d2p(row), ...size];
}"""
AREA = """(figure) => {
  const { xaxis: x, yaxis: y } = figure._fullLayout;
  const box = figure.getBoundingClientRect();
  return { x: box.x + x._offset, y: box.y + y._offset, width: x._length, height: y._length };
}"""
DECODE = """async (png) => {
  const bytes = Uint8Array.from(atob(png), (character) => character.charCodeAt(0));
  const image = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
  const pen = new OffscreenCanvas(image.width, image.height).getContext("2d");
  pen.drawImage(image, 0, 0);
  const { data } = pen.getImageData(0, 0, image.width, image.height);
  let text = "";
  for (let i = 0; i < data.length; i += 32768) text += String.fromCharCode(...data.subarray(i, i + 32768));
  return [image.width, image.height, btoa(text)];
}"""


def selector(figure: str) -> str:
    return f"[data-testid=figure-{figure}]"


def area(page: Page, figure: str) -> dict[str, float]:
    """Of what lies within a figure's axes: x, y, width and height on the page in pixels."""
    found: dict[str, float] = page.locator(selector(figure)).evaluate(AREA)
    return found


def bits(page: Page, figure: str) -> np.ndarray:
    """(rows, columns) of the numbers behind the cells, NaN where there is none."""
    return np.array(page.locator(selector(figure)).evaluate(HEATMAP), float)


def place(page: Page, figure: str, step: float, row: float) -> tuple[float, float, float, float]:
    """Where a cell's middle is on the page in pixels by Plotly's own axes, and a cell's width and height."""
    x, y, width, height = page.locator(selector(figure)).evaluate(PLACE, [step, row])
    return x, y, width, height


PAINTED = "() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))"


def pixels(page: Page, figure: str) -> np.ndarray:
    """(height, width, 3) colours of a figure on the screen, where it is on the screen; 0 around it."""
    box, size = page.locator(selector(figure)).bounding_box(), page.viewport_size
    assert box is not None
    assert size is not None
    page.evaluate(PAINTED)
    left, top = math.floor(box["x"]), max(0, math.floor(box["y"]))
    clip = {"x": left, "y": top, "width": box["width"], "height": min(box["height"], size["height"] - top)}
    width, height, data = page.evaluate(DECODE, base64.b64encode(page.screenshot(clip=clip)).decode())
    screen = np.zeros((size["height"] + 1, size["width"] + 1, 3), int)
    found = np.frombuffer(base64.b64decode(data), np.uint8).reshape(height, width, 4)
    screen[top : top + height, left : left + width] = found[..., :3]
    return screen


def colour(page: Page, name: str) -> np.ndarray:
    """A colour of style.css, or one of CSS, as the browser resolves it in the theme of now."""
    text = page.evaluate(
        """(name) => {
          const probe = document.body.appendChild(document.createElement("i"));
          probe.style.color = name.includes("(") ? name : `var(--${name})`;
          const found = getComputedStyle(probe).color;
          probe.remove();
          return found;
        }""",
        name,
    )
    return np.array([int(part) for part in re.findall(r"\d+", text)[:3]])


def headroom_colour(page: Page, at: int) -> np.ndarray:
    """One of the colours of the headroom scale: 0 hot, 6 calm."""
    script = (Path(__file__).parents[2] / "web" / "charts" / "colours.js").read_text()
    scale = re.search(r"const HEADROOM = \[(.*?)\];", script, re.DOTALL)
    assert scale is not None
    return colour(page, re.findall(r'"([^"]+)"', scale[1])[at])


def near(found: np.ndarray, wanted: np.ndarray, tolerance: int = 12) -> np.ndarray:
    """Which pixels have a colour."""
    return np.abs(found - wanted).max(axis=-1) <= tolerance


def around(screen: np.ndarray, x: float, y: float, reach: int) -> np.ndarray:
    """The square of pixels around a place."""
    left, top = round(x), round(y)
    return screen[max(0, top - reach) : top + reach + 1, max(0, left - reach) : left + reach + 1]
