// Light, dark, or as the machine says.

import { h, announce } from "./dom.js";

const KEY = "autotune-theme";

function stored() { try { return localStorage.getItem(KEY); } catch { return null; } }

export function applyTheme() {
  const chosen = stored();
  if (chosen) document.documentElement.dataset.theme = chosen; else delete document.documentElement.dataset.theme;
}

export function themeButton() {
  applyTheme();
  const dark = () => document.documentElement.dataset.theme === "dark" || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  const button = h("button", { type: "button", class: "quiet" }, dark() ? "Light" : "Dark");
  button.setAttribute("aria-label", "Switch between light and dark");
  button.addEventListener("click", () => {
    const next = dark() ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try { localStorage.setItem(KEY, next); } catch { /* a file without storage keeps it for this view */ }
    button.textContent = dark() ? "Light" : "Dark";
    announce(`${next} colours`);
  });
  return button;
}
