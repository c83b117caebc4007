
import assert from "node:assert/strict";
import { test } from "node:test";

import { frameOf } from "../../../web/charts/frame.js";
import { plainLines, readLines } from "../../../web/charts/lines.js";
import { dataBytes, everyValue, fileName } from "../../../web/charts/saving/files.js";
import { pictureDrawing, pictureFrame } from "../../../web/charts/saving/lane_files.js";

test("files of the server: the figure's own range, rank, kinds and filter", () => {
  const [csv, parquet] = everyValue(3, "layers", { start: 10, stop: 20, rank: 2, kind: ["grad", "output"], q: "a&b", rows: 400, columns: 900 });
  const query = "axes=step%2Ctensor&statistic=headroom_bits&statistic=amax&statistic=nan_count&statistic=inf_count&rank=2&kind=grad&kind=output&q=a%26b&start=10&stop=20&format=";
  assert.equal(csv.path, `/api/v1/runs/3/slice?${query}csv`);
  assert.equal(parquet.path, `/api/v1/runs/3/slice?${query}parquet`);
  assert.match(everyValue("1/../2", "tensor", { tensor: 7 })[0].path, /^\/api\/v1\/runs\/1%2F..%2F2\/slice\?axes=step%2Ctensor&statistic=headroom_bits&statistic=\*&tensor=7&format=csv$/);
  assert.deepEqual(everyValue(3, "loss", {}), []);
});

test("names of files are of safe characters, whatever they are made of", () => {
  assert.equal(fileName("run", 3, "loss_scale", "steps", 0, 199, "all ranks"), "run-3-loss-scale-steps-0-199-all-ranks");
  assert.equal(fileName("../../etc", "a\u0000b", "", "<x>.exe"), "etc-a-b-x-exe");
  assert.equal(fileName("x".repeat(500)).length, 120);
});

const PALETTE = /** @type {any} */ ({ panel: "rgb(1, 2, 3)", ink: "rgb(4, 5, 6)", muted: "rgb(7, 8, 9)", accent: "#111111", line: "#222222" });

test("a picture has its title, its axis and the names of its lines, which are text", () => {
  const model = readLines(/** @type {any} */ ({ figure: { data: [{ name: "slow", x: [1], y: [2] }, { name: "<b>fast", x: [1], y: [1] }] }, meta: { steps_per_column: 1 } }));
  const shown = frameOf(700, 84, { start: 0, stop: 5 });
  const frame = pictureFrame(shown, model);
  const drawing = plainLines({ colours: ["accent"], unit: "" })(model, frame, PALETTE);
  const { traces, layout } = /** @type {any} */ (pictureDrawing(drawing, model, frame, PALETTE, { title: "Step time", about: "run <i>x</i>" }, { axis: "step", marks: [3], swatches: [] }));
  assert.ok(layout.height > shown.height && layout.margin.t > shown.margin.t);
  assert.equal(layout.title.text, '<b>Step time</b><br><span style="font-size:11px;color:rgb(7,8,9)">run &lt;i&gt;x&lt;/i&gt;</span>');
  assert.equal(layout.xaxis.title.text, "step");
  assert.equal(layout.paper_bgcolor, "rgb(1, 2, 3)");
  assert.deepEqual(traces.map((/** @type {any} */ trace) => trace.name), ["&lt;b&gt;fast", "slow", "NaN or Inf"]);
  assert.equal(layout.shapes.at(-1).x0, 3);
});

test("a data URL of base64 is read as it was written", () => {
  assert.deepEqual([...dataBytes(`data:image/png;base64,${Buffer.from([1, 255]).toString("base64")}`)], [1, 255]);
});
