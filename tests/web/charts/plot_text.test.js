
import assert from "node:assert/strict";
import { test } from "node:test";

import { escapePlotText, heatmapDrawing } from "../../../web/charts/drawing.js";
import { frameOf } from "../../../web/charts/frame.js";
import { tensorLines } from "../../../web/charts/lines.js";

const PALETTE = /** @type {any} */ ({});
const FRAME = frameOf(1000, 100, { start: 0, stop: 2 });

test("Plotly's tags and entities arrive as themselves", () => {
  assert.equal(escapePlotText('<a href="javascript:x">&lt;</a>'), '&lt;a href="javascript:x"&gt;&amp;lt;&lt;/a&gt;');
});

test("no row name reaches Plotly unescaped", () => {
  const row = { label: "<b>&</b>", count: 1, tensor: 0, tensors: null, rank: null };
  const model = { rows: [row], markSteps: [] };
  assert.doesNotMatch(JSON.stringify(heatmapDrawing(model, FRAME, PALETTE)), /<b>/);
});

test("no dtype name reaches Plotly unescaped", () => {
  const limits = { dtype: "<i>f16</i>", max_finite: 65504, smallest_normal: 6e-5, smallest_subnormal: 6e-8 };
  const meta = { start: 0, stop: 2, steps_per_column: 1, note: "", limits };
  const series = { name: "amax", x: [0, 1], y: [1, 2] };
  const drawing = tensorLines({ series: [series], markSteps: [], meta }, FRAME, PALETTE);
  assert.match(JSON.stringify(drawing), /&lt;i&gt;f16/);
  assert.doesNotMatch(JSON.stringify(drawing), /<i>/);
});
