// Auto, light, dark: one button that steps through them.

import { el } from "../dom.js";
import { chooseTheme, nextChoice, themeChoice } from "../theme.js";

export function themeToggle() {
  const button = el("button", { type: "button", class: "quiet theme-toggle", click: step });
  const show = () => {
    button.textContent = `Theme: ${themeChoice()}`;
  };
  function step() {
    chooseTheme(nextChoice(themeChoice()));
    show();
  }
  show();
  return button;
}
