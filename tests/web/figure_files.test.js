
import assert from "node:assert/strict";
import { test } from "node:test";

import { frameOf } from "../../web/charts/frame.js";
import { plainLines, readLines } from "../../web/charts/lines.js";
import { dataBytes, dataText, everyValue, fileName } from "../../web/charts/saving/files.js";
import { pictureDrawing, pictureFrame } from "../../web/charts/saving/lane_files.js";
import { SvgPen, withTitle, xmlText } from "../../web/charts/saving/svg_pen.js";

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
  const model = readLines(/** @type {any} */ ({ figure: { data: [{ name: "slow", x: [1], y: [2] }, { name: "<b>fast", x: [1], y: [1] }], layout: {} }, meta: { steps_per_column: 1 } }));
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

test("a pen writes what a canvas would draw", () => {
  const pen = new SvgPen();
  pen.fillStyle = "rgb(1, 2, 3)";
  pen.fillRect(0, 0, 10, 5);
  pen.fillRect(10, 0, 10, 5); // goes on where the other ended
  pen.save();
  pen.translate(100, 50);
  pen.globalAlpha = 0.28;
  pen.fillRect(1, 1, 2, 2);
  pen.beginPath();
  pen.rect(0, 0, 4, 4);
  pen.clip();
  pen.beginPath();
  pen.moveTo(0, 0);
  pen.lineTo(4, 4);
  pen.stroke();
  pen.restore();
  pen.textAlign = "right";
  pen.fillText('<a & "b">', 7, 8);
  const text = pen.document(20, 30, "A <title>", "of & about");
  assert.match(text, /^<svg xmlns="http:\/\/www.w3.org\/2000\/svg" width="20" height="30" viewBox="0 0 20 30" role="img">\n<title>A &lt;title&gt;<\/title>\n<desc>of &amp; about<\/desc>/);
  assert.match(text, /<rect x="0" y="0" width="20" height="5" fill="rgb\(1, 2, 3\)"\/>\n<rect x="101" y="51" width="2" height="2" fill="rgb\(1, 2, 3\)" opacity="0.28"\/>/);
  assert.match(text, /<clipPath id="c1"><path d="M100 50h4v4h-4Z"\/><\/clipPath>\n<path d="M100 50L104 54" [^>]*clip-path="url\(#c1\)" opacity="0.28"\/>/);
  assert.match(text, /<text x="7" y="8" [^>]*text-anchor="end">&lt;a &amp; &quot;b&quot;&gt;<\/text>\n<\/svg>\n$/);
});

test("nothing gets into an SVG that XML cannot hold", () => {
  assert.equal(xmlText("a\u0000b\ud800c\u{1f525}"), "a\ufffdb\ufffdc\u{1f525}");
  assert.equal(withTitle('<svg class="x"><g/></svg>', "$& <t>", "d"), '<svg class="x" role="img"><title>$&amp; &lt;t&gt;</title>\n<desc>d</desc><g/></svg>');
});

test("data URLs are read as they are written", () => {
  assert.equal(dataText("data:image/svg+xml,%3Csvg%3E%C3%A9%2C"), "<svg>é,");
  assert.equal(dataText(`data:text/plain;base64,${Buffer.from("é").toString("base64")}`), "é");
  assert.deepEqual([...dataBytes(`data:image/png;base64,${Buffer.from([1, 255]).toString("base64")}`)], [1, 255]);
});
