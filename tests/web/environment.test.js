
import assert from "node:assert/strict";
import { test } from "node:test";

import { detailSections, environmentVerdict, flatDetails, mergedFindings, whose } from "../../web/pages/environment/environment.js";
import { linkGrid, linkNote, linkProblems, linkText, linkVerdict } from "../../web/pages/environment/link_matrix.js";

const finding = (/** @type {string} */ severity, what = "w") => ({ code: "c", severity, what, why: "", do: "", where: "" });
const rank = (/** @type {number} */ number, facts = {}, /** @type {any[]} */ findings = []) => ({ rank: number, host: "h", facts, findings });
/** @type {any} */
const LINKS = {
  ok: false, time_ns: 0, world_size: 4, bad_pairs: [[1, 2]], slow_pairs: [[0, 3]], ranks: [{ rank: 3, host: "n", ok: false, fault: "dies", error: "SIGSEGV" }],
  pairs: [
    { a: 0, b: 1, ok: true, slow: false, latency_s: 1e-5, busbw_bytes_per_s: 2e11, error: "" },
    { a: 0, b: 2, ok: true, slow: false, latency_s: 1e-5, busbw_bytes_per_s: 2e11, error: "" },
    { a: 0, b: 3, ok: true, slow: true, latency_s: 4e-5, busbw_bytes_per_s: 5e10, error: "" },
    { a: 1, b: 2, ok: false, slow: false, latency_s: null, busbw_bytes_per_s: null, error: "it hung" },
    { a: 1, b: 3, ok: null, slow: false, latency_s: null, busbw_bytes_per_s: null, error: "no time" },
  ],
};

test("a finding of many ranks stands once, the worst first", () => {
  const found = mergedFindings([rank(0, {}, [finding("info"), finding("warning", "x")]), rank(1, {}, [finding("warning", "x"), finding("error", "y")])]);
  assert.deepEqual(found.map(({ what, ranks }) => [what, ranks]), [["y", [1]], ["x", [0, 1]], ["w", [0]]]);
  assert.deepEqual(environmentVerdict({ ranks: [rank(0), rank(1)], odd: [], linkcheck: null }, found).parts, [["text", "1 error, 1 warning on 2 ranks: y"]]);
});

test("nothing wrong is said with what was looked at; nobody heard is not clean", () => {
  assert.deepEqual(environmentVerdict({ ranks: [rank(0), rank(1)], odd: [], linkcheck: null }, []).parts[0][1], "Nothing wrong was found on 2 ranks, and they are alike.");
  assert.equal(environmentVerdict({ ranks: [], odd: [], linkcheck: null }, []).level, "empty");
  const odd = [{ ...finding("warning", "rank 1 differs"), ranks: [1] }];
  assert.equal(environmentVerdict({ ranks: [rank(0), rank(1)], odd, linkcheck: null }, []).parts[0][1], "1 warning on 2 ranks: rank 1 differs");
});

test("facts: what ranks have in common stands once, what differs comes first with who", () => {
  const [torch] = detailSections([rank(0, { torch: { version: "2.13", cuda: "13.0" } }), rank(1, { torch: { version: "2.13", cuda: "12.8" } }), rank(2, { torch: { version: "2.13", cuda: "13.0" } })]);
  assert.deepEqual([torch.name, torch.differing], ["torch", 1]);
  assert.deepEqual(torch.facts[0], { key: "torch.cuda", values: [{ text: "13.0", ranks: [0, 2] }, { text: "12.8", ranks: [1] }] });
  assert.equal(torch.facts[1].values[0].ranks.length, 3);
  assert.deepEqual(flatDetails({ a: null, b: [], c: [{ d: 1 }], e: { f: 0 } }), [["a", "n/a"], ["b", "none"], ["c", '{"d":1}'], ["e.f", "0"]]);
  assert.equal(whose([0, 1], 2), "all ranks");
  assert.equal(whose([1], 2), "rank 1");
});

test("links: how many times worse than the median, alike in both directions", () => {
  const grid = linkGrid(LINKS, "busbw_bytes_per_s");
  assert.deepEqual([grid.cell(0, 1), grid.cell(3, 0), grid.cell(0, 3)], [1, 4, 4]);
  assert.deepEqual([grid.cell(2, 2), grid.cell(1, 2), grid.cell(1, 3), grid.cell(2, 3)], ["blank", "bad", null, null]);
  assert.equal(linkGrid(LINKS, "latency_s").cell(0, 3), 4);
  assert.equal(linkText(LINKS, "busbw_bytes_per_s", { row: 3, column: 0 }), "ranks 0 and 3: 50 GB/s, slow");
  assert.equal(linkText(LINKS, "latency_s", { row: 1, column: 2 }), "ranks 1 and 2: failed, it hung");
  assert.equal(linkText(LINKS, "latency_s", { row: 1, column: 3 }), "ranks 1 and 3: not tested, no time");
});

test("a linkcheck in words, whatever of it was sent", () => {
  assert.equal(linkVerdict(LINKS, 60e9).parts[0][1], "The links are not all right: bad link 1-2; slow link 0-3. Checked 1 min ago.");
  assert.match(linkVerdict({ ...LINKS, ok: true }, 0).parts[0][1], /^All 4 ranks and all links tested are fine/);
  assert.match(linkVerdict({ ok: false, time_ns: 0, bad_ranks: [3] }, 0).parts[0][1], /bad: rank 3/);
  assert.deepEqual(linkProblems(LINKS).map(({ who, what }) => [who, what]), [["rank 3", "dies: SIGSEGV"], ["ranks 0 and 3", "slow: 40 us, 50 GB/s"], ["ranks 1 and 2", "it hung"]]);
  assert.deepEqual(linkGrid({ ok: true, time_ns: 0 }, "latency_s").rows, []);
  assert.equal(linkNote({ ok: true, time_ns: 0 }), "");
});
