// The rules' thresholds for one run: what holds, and what somebody sets otherwise here.

import * as api from "../../api/client.js";
import { el, replace } from "../../format/dom.js";

/** @typedef {import("../../types.js").RuleInfo} RuleInfo */
/** @typedef {import("../../types.js").Preset} Preset */
/** @typedef {import("../../types.js").Thresholds} Thresholds */
/** @typedef {import("../../types.js").RuleTables} RuleTables */

/** @param {string} run @param {() => void} changed */
export function createThresholds(run, changed) {
  const body = el("tbody");
  const status = el("p", { role: "status", class: "muted" });
  const save = el("button", { type: "submit" }, "Set for this run");
  const back = el("button", { type: "button", class: "quiet", click: () => set({}) }, "Reset all");
  const preset = el("select", { change: () => fill(known.find(({ name }) => name === preset.value)) });
  const head = el("tr", {}, ...["Rule", "On", "Threshold", "Value", "Default", "Meaning"].map((name) => el("th", { scope: "col" }, name)));
  const table = el("table", { class: "dense" }, el("caption", {}, "When each rule fires in this run"), el("thead", {}, head), body);
  const choice = el("p", { class: "inline-form" }, el("label", {}, "Use the thresholds of ", preset), el("span", { class: "muted" }, "fills the table; it takes effect when you set it."));
  const form = el("form", { submit: sent }, choice, el("div", { class: "panel table-scroll" }, table), el("p", { class: "inline-form" }, save, back, status));
  const element = el("details", { class: "thresholds", "data-testid": "thresholds" }, el("summary", {}, "Thresholds of the rules"), form);
  /** @type {readonly Preset[]} */
  let known = [];
  let shown = "";

  /** The default values, and over them a preset's. @param {Preset | undefined} chosen */
  function fill(chosen) {
    for (const input of form.querySelectorAll("input")) {
      const [rule, name] = input.name.split(".");
      if (input.type === "number") input.value = String(chosen?.thresholds[rule]?.[name] ?? input.dataset.usual);
    }
    status.textContent = chosen ? `${chosen.title}. ${chosen.help}` : "";
  }

  /** @param {Event} event */
  function sent(event) {
    event.preventDefault();
    void set(given(form));
  }

  /** @param {RuleTables} tables */
  async function set(tables) {
    status.textContent = "Saving.";
    try {
      draw(await api.rules(), await api.setThresholds(run, tables), true);
      status.textContent = "Saved; the rules are checked again within seconds.";
      changed();
    } catch (error) {
      status.textContent = error instanceof Error ? error.message : String(error);
    }
  }

  /** @param {{rules: RuleInfo[], presets: Preset[]}} answer @param {Thresholds} thresholds @param {boolean} [anyway] */
  function draw({ rules, presets }, thresholds, anyway = false) {
    const now = JSON.stringify([rules, thresholds]);
    if (!anyway && (now === shown || form.contains(document.activeElement))) return; // what somebody types stays
    shown = now;
    known = presets;
    replace(preset, el("option", { value: "" }, "Rangewatch"), ...presets.map(({ name, title }) => el("option", { value: name }, title)));
    replace(body, ...rules.flatMap((rule) => rows(rule, thresholds)));
  }

  return { element, update: draw };
}

/** @param {RuleInfo} rule @param {Thresholds} thresholds */
function rows(rule, { in_force, file }) {
  const holds = in_force[rule.name] ?? {};
  const isOn = el("input", { type: "checkbox", name: `${rule.name}.enabled`, checked: holds.enabled !== false, "data-usual": String(file[rule.name]?.enabled !== false), "aria-label": `${rule.title}: on` });
  const first = [el("th", { scope: "row", title: rule.explanation }, rule.title), el("td", {}, isOn)];
  if (!rule.thresholds.length) return [el("tr", {}, ...first, el("td", { colspan: 4, class: "muted" }, "none"))];
  return rule.thresholds.map(({ name, default: usual, unit, help }, place) => {
    const base = file[rule.name]?.[name] ?? usual;
    const value = el("input", { type: "number", step: "any", name: `${rule.name}.${name}`, value: holds[name] ?? usual, "data-usual": base, "aria-label": `${rule.title}: ${name}` });
    return el("tr", {}, ...(place === 0 ? first : [el("td"), el("td")]), el("td", {}, name), el("td", {}, value, " ", unit), el("td", {}, String(base)), el("td", {}, help));
  });
}

/** What differs from what holds without this run's own. @param {HTMLFormElement} form @returns {RuleTables} */
function given(form) {
  /** @type {RuleTables} */
  const tables = {};
  for (const input of form.querySelectorAll("input")) {
    const [rule, name] = input.name.split(".");
    if (!rule || !name) continue;
    if (input.type === "checkbox" && String(input.checked) !== input.dataset.usual) (tables[rule] ??= {}).enabled = input.checked;
    if (input.type === "number" && input.value !== "" && Number(input.value) !== Number(input.dataset.usual)) (tables[rule] ??= {})[name] = Number(input.value);
  }
  return tables;
}
