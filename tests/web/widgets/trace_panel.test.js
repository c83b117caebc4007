
import assert from "node:assert/strict";
import { test } from "node:test";

import { ApiError } from "../../../web/api/fetch.js";
import { arrival, askedText, failureText, headline, isOpen, isPending, patternsOf, progress, rankLines, ranksOf } from "../../../web/widgets/trace_panel.js";

const at = (/** @type {number} */ rank, /** @type {string} */ state, more = {}) => ({ rank, state, first_step: null, last_step: null, reason: "", live: true, ...more });
const command = (/** @type {any[]} */ states, more = {}) => ({ id: 7, kind: "trace", steps: 3, modules: ["blocks.*"], ranks: null, created_ns: 0, withdrawn_ns: null, states, ...more });
const BOTH = [{ rank: 0, last_step: 101 }, { rank: 1, last_step: 99 }];

test("where it is, rank by rank, those alike together", () => {
  const span = { first_step: 100, last_step: 102 };
  assert.deepEqual(rankLines(command([at(0, "accepted", span), at(1, "pending"), at(2, "pending", { live: false }), at(3, "pending")]), BOTH), [
    "rank 0: tracing, steps 100-102; 2 of 3 arrived",
    "ranks 1 and 3: has not answered yet; it begins at its next step",
    "rank 2: has not answered, and has been silent for a while",
  ]);
  assert.deepEqual(rankLines(command([at(0, "done", span), at(1, "refused", { reason: "no module is named x" }), at(2, "expired", { reason: "no answer" }), at(3, "withdrawn")]), BOTH), [
    "rank 0: traced, steps 100-102", "rank 1: refused: no module is named x", "rank 2: expired: no answer", "rank 3: withdrawn before it began",
  ]);
});

test("how much has come", () => {
  const span = { first_step: 100, last_step: 102 };
  assert.equal(progress(command([at(0, "accepted", span), at(1, "pending")]), BOTH), 1 / 3);
  assert.equal(progress(command([at(0, "done", span), at(1, "refused")]), BOTH), 1);
  assert.equal(progress(command([at(0, "withdrawn")]), BOTH), 0);
  assert.deepEqual([isOpen(command([at(0, "done"), at(1, "accepted")])), isOpen(command([at(0, "done")])), isPending(command([at(0, "accepted")]))], [true, false, false]);
});

test("the first traced step is offered, once it is there", () => {
  assert.equal(arrival(command([at(0, "accepted", { first_step: 100 })])), null);
  assert.deepEqual(arrival(command([at(0, "done", { first_step: 103 }), at(2, "done", { first_step: 101 }), at(1, "done", { first_step: 101 })])), { step: 101, rank: 1 });
  const minutes = 3 * 60e9;
  assert.equal(headline(command([at(0, "done", { first_step: 1 })]), minutes), "Trace of 3 steps of blocks.*, all ranks, asked 3 min ago: complete.");
  assert.equal(headline(command([at(0, "withdrawn")], { modules: [], ranks: [0, 2] }), 1), "Trace of 3 steps, ranks 0 and 2, asked just now: withdrawn.");
  assert.equal(headline(command([at(0, "refused")], { steps: 1 }), minutes), "Trace of 1 step of blocks.*, all ranks, asked 3 min ago: failed.");
  assert.equal(headline(command([at(0, "pending")]), minutes), `Trace of ${askedText(command([]))}: under way.`);
});

test("ranks and patterns as they are typed", () => {
  assert.deepEqual([ranksOf(""), ranksOf(" 5, 0 2-4,3 ")], [null, [0, 2, 3, 4, 5]]);
  for (const text of ["x", "3-1", "-1", "1.5", "0-9999999"]) assert.throws(() => ranksOf(text), /is no rank/, text);
  assert.throws(() => ranksOf("0-500000"), /is no rank/);
  assert.deepEqual(patternsOf(" blocks.*, norm ,\n,lm_head"), ["blocks.*", "norm", "lm_head"]);
});

test("a refusal says what to do", () => {
  const textOf = (/** @type {number} */ status, /** @type {string} */ code) => failureText(new ApiError(status, code, "run 3 has finished"));
  assert.match(textOf(403, "forbidden"), /role admin/);
  assert.match(textOf(409, "not_live"), /There is nothing to trace: run 3 has finished\./);
  assert.match(textOf(409, "too_many_commands"), /withdraw some/);
  assert.match(textOf(409, "not_pending"), /answered already/);
  assert.match(textOf(429, "busy"), /try again/);
  assert.match(textOf(422, "bad_parameter"), /did not take it: run 3 has finished\./);
  assert.equal(failureText(new ApiError(0, "unreachable", "No answer.")), "No answer.");
});
