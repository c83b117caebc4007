
import assert from "node:assert/strict";
import { test } from "node:test";

import { createDraft } from "../../../web/pages/overview/overview.js";

const field = () => /** @type {any} */ ({ value: "" });
/** @param {unknown} focused */
const focus = (focused) => Object.assign(globalThis, { document: { activeElement: focused } });

test("a field is filled anew until somebody changes it, wherever the focus is", () => {
  focus(null);
  const input = field();
  const draft = createDraft(input);
  draft.put("one");
  draft.put("two");
  assert.deepEqual([input.value, draft.isChanged()], ["two", false]);
  input.value = "mine";
  draft.put("three");
  assert.deepEqual([input.value, draft.isChanged()], ["mine", true]);
});

test("what was saved is the server's again, what was typed meanwhile is not", () => {
  focus(null);
  const input = field();
  const draft = createDraft(input);
  input.value = " mine ";
  const accept = draft.sent();
  input.value = "mine, and more";
  accept();
  assert.equal(draft.isChanged(), true);
  input.value = " mine ";
  assert.equal(draft.isChanged(), false);
  draft.put("mine");
  assert.equal(input.value, "mine");
});

test("nothing changes under the reader's fingers", () => {
  const input = field();
  focus(input);
  createDraft(input).put("one");
  assert.equal(input.value, "");
});
