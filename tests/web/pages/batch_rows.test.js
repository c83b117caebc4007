// What the Step page says of the rows that a step was made of.

import assert from "node:assert/strict";
import { test } from "node:test";

import { idLines, lossText, rowsText } from "../../../web/pages/step/batch_rows.js";

test("the first ids, and how many more there are", () => {
  assert.equal(rowsText({ ids: [17, "a/b.png"], count: 2 }), "2 rows: 17, a/b.png");
  assert.match(rowsText({ ids: Array.from({ length: 100 }, (_, at) => at), count: 1800, microbatches: 2 }), /^1,800 rows in 2 microbatches: 0, 1, .*63 and 1,736 more$/);
  assert.match(rowsText({ largest: [] }), /not known/);
});

test("every id that was sent can be copied, a line each", () => {
  assert.equal(idLines({ ids: [17, "a/b.png"] }), "17\na/b.png");
});

test("a loss that is not finite is a text, others are held against the median", () => {
  assert.equal(lossText("NaN", 0.5), "NaN");
  assert.match(lossText(20, 0.5), /times the median/);
  assert.doesNotMatch(lossText(20, null), /median/);
});
