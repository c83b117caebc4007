
import assert from "node:assert/strict";
import { test } from "node:test";

import { environmentVerdict, mergedFindings } from "../../../web/pages/environment/environment.js";
import { linkGrid, linkNote, linkProblems, linkText, linkVerdict } from "../../../web/pages/environment/link_matrix.js";
import { detailsOf, differencesOf, flatDetails, matching, whose } from "../../../web/pages/environment/values.js";

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
  const merged = mergedFindings([rank(0, {}, [finding("info"), finding("warning", "x")]), rank(1, {}, [finding("warning", "x"), finding("error", "y")])]);
  assert.deepEqual(merged.map(({ what, ranks }) => [what, ranks]), [["y", [1]], ["x", [0, 1]], ["w", [0]]]);
  assert.deepEqual(environmentVerdict({ ranks: [rank(0), rank(1)], odd: [], linkcheck: null }, merged).parts, [["text", "1 error, 1 warning on 2 ranks: y"]]);
});

test("nothing wrong is said with what was looked at; nobody heard is not clean", () => {
  assert.deepEqual(environmentVerdict({ ranks: [rank(0), rank(1)], odd: [], linkcheck: null }, []).parts[0][1], "No problem on 2 ranks; their settings are identical.");
  assert.equal(environmentVerdict({ ranks: [], odd: [], linkcheck: null }, []).level, "empty");
  const odd = [{ ...finding("warning", "rank 1 differs"), ranks: [1] }];
  assert.equal(environmentVerdict({ ranks: [rank(0), rank(1)], odd, linkcheck: null }, []).parts[0][1], "1 warning on 2 ranks: rank 1 differs");
});

test("differences: who has what; not what each rank has of its own", () => {
  const versions = (/** @type {string} */ cuda, /** @type {number} */ pid) => ({ torch: { version: "2.13", cuda }, pid });
  const details = detailsOf([rank(0, versions("13.0", 7)), rank(1, { ...versions("12.8", 8), variables: { NCCL_DEBUG: "INFO" } }), rank(2, versions("13.0", 9))]);
  assert.deepEqual(details.map(({ key }) => key), ["pid", "torch.cuda", "torch.version", "variables.NCCL_DEBUG"]);
  assert.deepEqual(differencesOf(details, 3), [{ key: "variables.NCCL_DEBUG", values: [{ text: "INFO", ranks: [1] }] }, { key: "torch.cuda", values: [{ text: "13.0", ranks: [0, 2] }, { text: "12.8", ranks: [1] }] }]);
  const own = (/** @type {string} */ number) => ({ variables: { RANK: number, LOCAL_RANK: number, NCCL_ALGO: `x${number}` } });
  assert.deepEqual(differencesOf(detailsOf([rank(0, own("0")), rank(1, own("1"))]), 2).map(({ key }) => key), ["variables.NCCL_ALGO"]);
  assert.deepEqual([matching(details, "TORCH 2.13"), matching(details, "info"), matching(details, "")].map((found) => found.length), [1, 1, 4]);
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
