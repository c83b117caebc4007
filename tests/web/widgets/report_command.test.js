
import assert from "node:assert/strict";
import { test } from "node:test";

import { quoted, reportCommand } from "../../../web/widgets/run_report.js";

const HERE = "http://127.0.0.1:8642";
const command = (/** @type {string} */ name) => reportCommand({ id: 7, name }, HERE);

test("a plain name stands as it is, any other in single quotes", () => {
  assert.equal(command("t5-base/1.2"), `rangewatch export t5-base/1.2 run-7-report.html --url ${HERE}`);
  assert.equal(command("$(id) `id` !1"), `rangewatch export '$(id) \`id\` !1' run-7-report.html --url ${HERE}`);
  assert.equal(quoted("it's"), `'it'"'"'s'`);
  assert.equal(quoted(""), "''");
});

test("an address whose brackets a shell would look for among files is quoted", () => {
  assert.match(reportCommand({ id: 7, name: "a" }, "http://[::1]:8642"), / --url 'http:\/\/\[::1\]:8642'$/);
});

test("what a terminal obeys, what is not seen, an option and what nobody reads: the run's number", () => {
  for (const name of ["a\nb", "\u0015id\r", "\u001b[201~id", "\u202eevil", "a\u2028b", "-rf", "12", "--url=x", "", "x".repeat(201)]) {
    assert.equal(command(name), `rangewatch export 7 run-7-report.html --url ${HERE}`, JSON.stringify(name));
  }
  assert.match(command("réseau 層 🔥"), / 'réseau 層 🔥' /);
});
