// What is said beside the last lines of stderr, and of which ranks they are offered.

import assert from "node:assert/strict";
import test from "node:test";
import { tailRanks } from "../../../web/pages/overview/overview.js";
import { stderrNote } from "../../../web/widgets/stderr_tail.js";

const tail = { rank: 1, ranks: [1], host: "a", is_recorded: true, lines: ["x"], source: "file", path: "/f", is_cut: false, shared_with: [], step: 1042, time_ns: 1, note: "The end of /f on a." };

test("where the lines are from, of which step, and whether there were more", () => {
  assert.equal(stderrNote(tail), "At step 1,042. The end of /f on a.");
  assert.equal(stderrNote({ ...tail, step: null, is_cut: true }), "The end of /f on a. There was more before.");
  assert.equal(stderrNote({ ...tail, is_recorded: false, step: null, note: "Not recorded: turn on." }), "Not recorded: turn on.");
});

test("of the rank that is chosen, then those that died, then those that failed; few, and each once", () => {
  const ranks = /** @type {any} */ (Array.from({ length: 9 }, (_, rank) => ({ rank, failure: rank > 5 ? "x" : null })));
  const deaths = /** @type {any} */ ([{ rank: 3 }, { rank: 7 }]);
  assert.deepEqual(tailRanks({ ranks, deaths }, "all"), [3, 7, 6, 8]);
  assert.deepEqual(tailRanks({ ranks, deaths }, 0), [0, 3, 7, 6]);
  assert.deepEqual(tailRanks({ ranks, deaths: undefined }, 12), [6, 7, 8]);
  assert.deepEqual(tailRanks({ ranks: ranks.slice(0, 2), deaths: [] }, null), []);
});
