// Gives the token for a session; the token itself is kept nowhere in the browser.

import { request } from "./source.js";
import { applyTheme } from "./theme.js";

applyTheme();
const form = document.getElementById("login");
const wrong = document.getElementById("wrong");

// Only a place on this site: an address with a host of its own would lead away.
export function nextPlace(search, origin) {
  const wanted = new URLSearchParams(search).get("next") ?? "/";
  try {
    const place = new URL(wanted, origin);
    return place.origin === origin && wanted.startsWith("/") ? place.pathname + place.search : "/";
  } catch {
    return "/";
  }
}

form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  wrong.textContent = "";
  try {
    await request("/session", { method: "POST", body: { token: document.getElementById("token").value } });
    location.assign(nextPlace(location.search, location.origin));
  } catch (problem) {
    wrong.textContent = problem.status === 429 ? "Too many tries; wait a minute." : problem.status === 401 ? "This is not the token." : problem.message;
    document.getElementById("token").select();
  }
});
