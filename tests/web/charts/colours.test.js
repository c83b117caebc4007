// The colours of style.css and of the heatmaps: legible by WCAG 2.2 AA in both themes, and distinguishable without one of the cones.

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";
import { THEMES, VISION, contrast, difference, lab, tokens } from "./colour_vision.js";

const WEB = new URL("../../../web/", import.meta.url);
const CSS = readdirSync(new URL("styles/", WEB)).map((name) => `styles/${name}`).map((name) => readFileSync(new URL(name, WEB), "utf8")).join("\n").replace(/\/\*[\s\S]*?\*\//g, "");

/** What text stands on. `select` lies under rows and entries that are pointed at or chosen. */
const GROUNDS = ["bg", "panel", "select"];
/** A triangle and lines of figures: no text is set in it. */
const GLYPHS = ["nonfinite"];
/** Rules between rows and around panels, which space and headings separate as well: no part that WCAG 1.4.11 speaks of. */
const DECORATION = ["line"];
/** Fills of cells, which the table beside each figure says in words, and grounds. */
const FILLS = /^(p\d|calm|bg|panel|select|radius|mono)$/;

/** @param {RegExp} pattern @returns {string[]} names of colours */
const named = (pattern) => [...new Set(Array.from(CSS.matchAll(pattern), ([, name]) => name))];

const TEXT = named(/(?<![\w-])color: var\(--([\w-]+)\)/g).filter((name) => !GLYPHS.includes(name));
const PARTS = named(/(?:border|outline|stroke|fill)[\w-]*: [^;]*?var\(--([\w-]+)\)/g).filter((name) => !DECORATION.includes(name) && !FILLS.test(name));

test("CIEDE2000 is that of its authors' test data", () => {
  const cases = /** @type {const} */ ([[[50, 2.6772, -79.7751], [50, 0, -82.7485], 2.0425], [[50, 2.5, 0], [61, -5, 29], 22.8977], [[2.0776, 0.0795, -1.135], [0.9033, -0.0636, -0.5514], 0.9082]]);
  for (const [one, other, wanted] of cases) assert.ok(Math.abs(difference([...one], [...other]) - wanted) < 1e-4);
  assert.ok(Math.abs(contrast("#000000", "#ffffff") - 21) < 1e-9);
});

for (const theme of THEMES) {
  const colours = tokens(theme);

  test(`${theme}: text has a contrast of 4.5 on every ground`, () => {
    assert.ok(TEXT.length >= 6 && TEXT.includes("muted"), String(TEXT));
    const low = TEXT.flatMap((name) => GROUNDS.map((ground) => ({ name, ground, ratio: contrast(colours[name], colours[ground]) }))).filter(({ ratio }) => ratio < 4.5);
    assert.deepEqual(low, []);
  });

  test(`${theme}: edges of controls, marks and lines have a contrast of 3`, () => {
    assert.ok(PARTS.includes("hatch") && PARTS.includes("accent"), String(PARTS));
    const parts = [...PARTS, ...GLYPHS, "second"].flatMap((name) => ["bg", "panel"].map((ground) => ({ name, ground, ratio: contrast(colours[name], colours[ground]) })));
    assert.deepEqual(parts.filter(({ ratio }) => ratio < 3), []);
  });

  test(`${theme}: the hatch of NaN and Inf shows without any colour`, () => {
    assert.ok(contrast(colours["nonfinite-ink"], colours.nonfinite) >= 3);
  });

  for (const [name, matrix] of Object.entries(VISION)) {
    const apart = (/** @type {string} */ a, /** @type {string} */ b) => difference(lab(colours[a], matrix), lab(colours[b], matrix));

    // A just noticeable difference is about 2.3 in CIE L*a*b* (Mahy, Van Eycken and Oosterlinck, 1994) of patches side
    // by side; three of them are seen in cells of a few pixels, too.
    test(`${theme}, ${name}: neighbouring stops of the headroom scale differ`, () => {
      for (let i = 0; i < 6; i += 1) assert.ok(apart(`h${i}`, `h${i + 1}`) > 7, `h${i} ${apart(`h${i}`, `h${i + 1}`)}`);
    });

    // Phases lie on each other in an area, lines cross each other: looked up in a legend, so twice as far apart.
    test(`${theme}, ${name}: phases and lines differ`, () => {
      const pairs = [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5]].map(([a, b]) => [`p${a}`, `p${b}`]);
      for (const [a, b] of [...pairs, ["accent", "second"], ["accent", "warning"], ["second", "warning"], ["accent", "muted"]]) {
        assert.ok(apart(a, b) > 12, `${a} ${b} ${apart(a, b)}`);
      }
    });
  }
}
