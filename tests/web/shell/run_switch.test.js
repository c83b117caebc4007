
import assert from "node:assert/strict";
import { test } from "node:test";

import { formatState, parseState } from "../../../web/api/url_state.js";
import { stateFor, switchedPath } from "../../../web/shell/router.js";

const OTHER = { id: 7, world_size: 4, first_step: 0, last_step: 999 };

test("the same page of another run keeps what makes sense there", () => {
  const state = parseState("?step=12&rank=3&tensor=41&start=100&stop=300&kind=grad&q=ff&key=GPU-1&against=rank:2&from=1&to=2");
  assert.equal(switchedPath("/runs/{id}/layers", state, OTHER), "/runs/7/layers?rank=3&start=100&stop=300&kind=grad&q=ff");
});

test("a rank that the other run has not, and steps that it has not, are left behind", () => {
  const switched = (/** @type {string} */ search, other = OTHER) => formatState(stateFor(parseState(search), other));
  assert.equal(switched("?rank=4"), "");
  assert.equal(switched("?rank=all"), "?rank=all");
  assert.equal(switched("?start=2000&stop=3000"), "");
  assert.equal(switched("?start=900&stop=3000"), "?start=900&stop=3000");
  assert.equal(switched("?last=50"), "?last=50");
  assert.equal(switched("?start=5&stop=9", { ...OTHER, first_step: /** @type {any} */ (null), last_step: /** @type {any} */ (null) }), "");
});
