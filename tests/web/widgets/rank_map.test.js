import assert from "node:assert/strict";
import { test } from "node:test";

import { boxOf, cellText, heatOf, layoutOf, mapSummary, movedSpot, othersText, rowsOf, spotAt, spotOf } from "../../../web/widgets/ranks/rank_layout.js";

/** @param {number} ranks @param {number} perNode @returns {import("../../../web/types.js").RankMap} */
function mapOf(ranks, perNode) {
  const nodes = Array.from({ length: Math.ceil(ranks / perNode) }, (_, node) => {
    const mine = Array.from({ length: Math.min(perNode, ranks - node * perNode) }, (_each, i) => node * perNode + i);
    return { host: `node${node}`, local_ranks: mine.map((rank) => rank % perNode), ranks: mine, values: mine.map((rank) => (rank === 5 ? 0.02 : rank === 6 ? null : 0)) };
  });
  return { measure: "cost", title: "Cost to others a step", unit: "_s", worst: "most", is_of_steps: true, start: 0, stop: 9, measures: [], scale: { calm: 1e-4, hot: 1, is_log: true }, nodes, rank_count: ranks, known_count: ranks - 1, outliers: [{ rank: 5, host: "node0", value: 0.02, score: 100 }], outlier_count: 1, others: { count: ranks - 2, median: 0, p5: 0, p95: 0.001 } };
}

for (const [ranks, perNode, width, most] of [[8, 8, 1100, 20], [1024, 8, 1100, 100], [1024, 8, 350, 100], [4096, 8, 1100, 170], [1024, 1024, 1100, 100]]) {
  test(`${ranks} ranks, ${perNode} a node, in ${width} pixels: each has its own place, and it is found there`, () => {
    const rows = rowsOf(mapOf(ranks, perNode));
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
  const rows = rowsOf(mapOf(16, 8));
  assert.deepEqual(movedSpot(rows, null, "ArrowRight", spotOf(rows, 5)), { row: 0, column: 5 });
  assert.deepEqual(movedSpot(rows, { row: 0, column: 5 }, "ArrowDown", null), { row: 1, column: 5 });
  assert.deepEqual(movedSpot(rows, { row: 1, column: 7 }, "ArrowRight", null), { row: 1, column: 7 });
  assert.equal(movedSpot(rows, null, "x", null), null);
});

test("who stands out is named, the others are one, and unknown is said", () => {
  const map = mapOf(1024, 8);
  assert.equal(othersText(map), "1,022 others: median 0 ms, 5-95 % 0 ms to 1 ms; 1 not known");
  assert.match(mapSummary(map), /rank 5 20 ms stands out; 1,022 others/);
  const [row] = rowsOf(map);
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
