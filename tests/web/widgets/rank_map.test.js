import assert from "node:assert/strict";
import { test } from "node:test";

import { choicesOf, known, rankName } from "../../../web/widgets/ranks/mesh_places.js";
import { boxOf, cellText, heatOf, layoutOf, mapSummary, movedSpot, othersText, rowsOf, spotAt, spotOf } from "../../../web/widgets/ranks/rank_layout.js";

/** @param {number} ranks @param {number} perNode @returns {import("../../../web/types.js").RankMap} */
function mapOf(ranks, perNode) {
  const nodes = Array.from({ length: Math.ceil(ranks / perNode) }, (_, node) => {
    const mine = Array.from({ length: Math.min(perNode, ranks - node * perNode) }, (_each, i) => node * perNode + i);
    return { host: `node${node}`, local_ranks: mine.map((rank) => rank % perNode), ranks: mine, values: mine.map((rank) => (rank === 5 ? 0.02 : rank === 6 ? null : 0)) };
  });
  return { measure: "cost", title: "Cost to others a step", unit: "_s", worst: "most", is_of_steps: true, start: 0, stop: 9, measures: [], scale: { calm: 1e-4, hot: 1, is_log: true }, nodes, rank_count: ranks, known_count: ranks - 1, outliers: [{ rank: 5, host: "node0", value: 0.02, score: 100 }], outlier_count: 1, others: { count: ranks - 2, median: 0, p5: 0, p95: 0.001 } };
}

/** By node. @param {import("../../../web/types.js").RankMap} map */
const nodesOf = (map) => rowsOf(map, runOf(map, {}), { rows: "", columns: "" });

/** Ranks on a declared mesh, the outermost axis first. @param {import("../../../web/types.js").RankMap} map @param {Record<string, number>} sizes @returns {any} */
function runOf(map, sizes) {
  const names = Object.keys(sizes);
  const strides = names.map((_, at) => names.slice(at + 1).reduce((product, name) => product * sizes[name], 1));
  const coordinates = (/** @type {number} */ rank) => Object.fromEntries(names.map((name, at) => [name, Math.floor(rank / strides[at]) % sizes[name]]));
  const ranks = map.nodes.flatMap(({ host, ranks: of }) => (host === null ? [] : of.map((rank) => ({ rank, host, coordinates: coordinates(rank) }))));
  return { ranks, mesh: { source: "declared", axes: names.map((name) => ({ name, size: sizes[name], is_joined: false })), problems: [] } };
}

for (const [ranks, perNode, width, most] of [[8, 8, 1100, 20], [1024, 8, 1100, 100], [1024, 8, 350, 100], [4096, 8, 1100, 170], [1024, 1024, 1100, 100]]) {
  test(`${ranks} ranks, ${perNode} a node, in ${width} pixels: each has its own place, and it is found there`, () => {
    const rows = nodesOf(mapOf(ranks, perNode));
    const layout = layoutOf(rows, width);
    assert.ok(layout.height <= most, `${layout.height} pixels high`);
    for (let rank = 0; rank < ranks; rank += 1) {
      const spot = spotOf(rows, rank);
      assert.ok(spot);
      const box = boxOf(spot, layout);
      assert.ok(box.left >= 0 && box.left + box.width <= width, `rank ${rank} at ${box.left} of ${width}`);
      assert.deepEqual(spotAt(rows, box.left + box.width / 2, box.top + box.height / 2, layout), spot);
    }
  });
}

test("arrow keys go from rank to rank, and enter at the worst", () => {
  const rows = nodesOf(mapOf(16, 8));
  assert.deepEqual(movedSpot(rows, null, "ArrowRight", spotOf(rows, 5)), { row: 0, column: 5 });
  assert.deepEqual(movedSpot(rows, { row: 0, column: 5 }, "ArrowDown", null), { row: 1, column: 5 });
  assert.deepEqual(movedSpot(rows, { row: 1, column: 7 }, "ArrowRight", null), { row: 1, column: 7 });
  assert.equal(movedSpot(rows, null, "x", null), null);
});

test("who stands out is named, the others are one, and unknown is said", () => {
  const map = mapOf(1024, 8);
  assert.equal(othersText(map), "1,022 others: median 0 ms, 5-95 % 0 ms to 1 ms; 1 not known");
  assert.match(mapSummary(map), /rank 5 20 ms stands out; 1,022 others/);
  const [row] = nodesOf(map);
  assert.equal(cellText(map, row.cells[5]), "rank 5, node0, local rank 5: cost to others a step 20 ms, stands out");
  assert.match(cellText(map, row.cells[6]), /not known$/);
  assert.match(othersText({ ...map, nodes: [...map.nodes, { host: null, local_ranks: [0], ranks: [1024], values: [null] }] }), /1 not reported$/);
  const unknown = { ...map, outliers: [], outlier_count: 0, known_count: 0, others: { ...map.others, count: 0 } };
  assert.equal(mapSummary(unknown), "Cost to others a step: not known of any rank.");
});

test("a value is calm or hot whichever way is worse", () => {
  assert.equal(heatOf(0, { calm: 1e-4, hot: 1, is_log: true }), 0);
  assert.ok(Math.abs(heatOf(0.01, { calm: 1e-4, hot: 1, is_log: true }) - 0.5) < 1e-9);
  assert.equal(heatOf(990, { calm: 1980, hot: 990, is_log: false }), 1);
  assert.equal(heatOf(2000, { calm: 1980, hot: 990, is_log: false }), 0);
  assert.equal(heatOf(0, { calm: 0, hot: 0, is_log: false }), 0);
});

const MESH = { pp: 16, dp: 8, tp: 8 };

test("any two axes are rows and columns, and each cell is the worst of its ranks", () => {
  const map = mapOf(1024, 8);
  const run = runOf(map, MESH);
  const rows = rowsOf(map, run, { rows: "pp", columns: "tp" });
  assert.deepEqual(rows.map(({ host }) => host).slice(0, 3), ["pp 0", "pp 1", "pp 2"]);
  assert.ok(rows.length === 16 && rows.every(({ cells }) => cells.length === 8 && cells.every((cell) => cell.count === 8)));
  assert.deepEqual([rows[0].cells[5].rank, rows[0].cells[5].value], [5, 0.02]);
  assert.equal(cellText(map, rows[0].cells[5]), "worst of 8 ranks: rank 5, node0, pp 0, dp 0, tp 5: cost to others a step 20 ms, stands out");
  assert.notEqual(rows[0].cells[6].value, null, "of which one rank is not known, the others are");
  const least = rowsOf({ ...map, worst: "least" }, run, { rows: "pp", columns: "tp" });
  assert.equal(least[0].cells[5].value, 0);
});

test("one axis alone has its ranks in rows, and nodes and axes go together", () => {
  const map = mapOf(32, 8);
  const run = runOf(map, { dp: 4, tp: 8 });
  const byRow = rowsOf(map, run, { rows: "tp", columns: "" });
  assert.deepEqual(byRow[5].cells.map(({ rank }) => rank), [5, 13, 21, 29]);
  const byNode = rowsOf(map, run, { rows: "", columns: "tp" });
  assert.deepEqual(byNode.map(({ host, cells }) => [host, cells.length]), [["node0", 8], ["node1", 8], ["node2", 8], ["node3", 8]]);
});

test("ranks of which no place is known, and those that have not reported, have rows of their own", () => {
  const map = mapOf(16, 8);
  const missing = { ...map, nodes: [...map.nodes, { host: null, local_ranks: [0], ranks: [16], values: [null] }] };
  const run = runOf(missing, { dp: 2, tp: 8 });
  run.ranks[3].coordinates = {};
  const rows = rowsOf(missing, run, { rows: "dp", columns: "tp" });
  assert.deepEqual(rows.map(({ host, cells }) => [host, cells.length]), [["dp 0", 7], ["dp 1", 8], ["unknown", 1], [null, 1]]);
});

test("a rank is called by its place, and choices are what the run has", () => {
  const run = runOf(mapOf(1024, 8), MESH);
  assert.equal(rankName(run, 13), "rank 13 (node1, pp 0, dp 1, tp 5)");
  assert.deepEqual(choicesOf(run).map(({ text }) => text), ["node (128)", "pp (16)", "dp (8)", "tp (8)"]);
  assert.deepEqual([known(run, "dp"), known(run, "ep"), known(run, "node")], ["dp", "", "node"]);
  const bare = { ranks: [{ rank: 0, host: "a" }, { rank: 1, host: "a" }] };
  assert.equal(rankName(/** @type {any} */ (bare), 1), "rank 1");
});
