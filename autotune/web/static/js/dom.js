// Elements are made of values, never of markup: a study's name or a flag can hold any text.

const SVG = "http://www.w3.org/2000/svg";
const SHAPES = new Set(["svg", "g", "path", "line", "rect", "circle", "text", "tspan", "title", "defs", "clipPath", "pattern"]);

export function h(tag, props = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = SHAPES.has(name) ? document.createElementNS(SVG, name) : document.createElement(name || "div");
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "class") element.setAttribute("class", [element.getAttribute("class"), value].filter(Boolean).join(" "));
    else if (key === "style") for (const [name_, css] of Object.entries(value)) element.style.setProperty(name_, css);
    else if (key === "value") element.value = value;
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children.flat(4)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

// What the reader opened stays open and the keyboard stays where it was, where the new content has the same.
export function replace(element, ...children) {
  const opened = new Set([...element.querySelectorAll("details[open] > summary")].map((one) => one.textContent));
  const focused = focusedIn(element);
  element.replaceChildren();
  append(element, children);
  for (const one of element.querySelectorAll("details")) if (opened.has(one.querySelector("summary")?.textContent)) one.open = true;
  if (focused) {
    for (const figure of element.querySelectorAll("figure")) figure.redraw?.();  // it would draw only once it has a width
    element.querySelector(focused)?.focus({ preventScroll: true });
  }
  return element;
}

// What has the focus in an element, as a selector that finds it when the element is drawn anew; null where nothing has.
export function focusedIn(element) {
  const active = document.activeElement;
  if (!active || !element.contains(active)) return null;
  if (active.id) return `#${CSS.escape(active.id)}`;
  for (const key of ["number", "kind", "value"]) if (active.dataset[key]) return `[data-${key}="${CSS.escape(active.dataset[key])}"]`;
  if (active.classList.contains("slo-grip")) return ".slo-grip";
  return active.tagName === "SUMMARY" ? "details > summary" : null;
}

export function announce(text) {
  const live = document.getElementById("live");
  if (live) live.textContent = text;
}

export function copyButton(text, label = "Copy") {
  const button = h("button", { type: "button" }, label);
  button.addEventListener("click", async () => {
    const done = await copied(text);
    button.textContent = done ? "Copied" : "Select and copy by hand";
    announce(done ? "Copied" : "Copying is not allowed here");
    setTimeout(() => { button.textContent = label; }, 1600);
  });
  return button;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea", { "aria-hidden": "true", class: "unseen" });
    area.value = text;
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

// A command line is broken between its words, and not within a flag at one of its hyphens.
export function copyBlock(label, text) {
  const shown = text.includes("\n") ? text : text.split(" ").flatMap((word, place) => [place ? " " : "", h("span.word", {}, word)]);
  return h("div.copy", {}, h("div.row", {}, h("h3", {}, label), copyButton(text)), h("pre", { tabindex: "0", "aria-label": label, role: "region" }, shown));
}

// A table from columns {head, cell(row), right, sort(row)}; rows may be marked. `stacked`: on a phone each row is a block;
// the roles say what it is to readers of the screen even then.
export function table(columns, rows, { caption, marked = () => false, label, stacked = false } = {}) {
  const role = (name) => (stacked ? name : null);
  return h("div.scroll", { tabindex: "0", role: "region", "aria-label": label ?? caption ?? "Table" },
    h("table", { class: stacked ? "stacked" : null, role: role("table") }, caption ? h("caption.unseen", {}, caption) : null,
      h("thead", { role: role("rowgroup") }, h("tr", { role: role("row") }, columns.map((one) => h("th", { scope: "col", role: role("columnheader"), class: one.right ? "r" : null }, one.head)))),
      h("tbody", { role: role("rowgroup") }, rows.map((row) => h("tr", { role: role("row"), class: marked(row) ? "mark" : null }, columns.map((one, place) => {
        const cell = one.cell(row);
        return place === 0 ? h("th", { scope: "row", role: role("rowheader"), class: one.right ? "r" : null }, cell) : h("td", { role: role("cell"), class: one.right ? "r" : null, "data-head": stacked && one.head ? one.head : null }, cell);
      }))))));
}

// What a picture shows, as a table that opens below it.
export function dataTable(columns, rows, caption) {
  const details = h("details.data", {}, h("summary", {}, `Data table: ${caption}`));
  let filled = false;
  details.addEventListener("toggle", () => {
    if (details.open && !filled) {
      filled = true;
      details.append(table(columns, rows, { caption }));
    }
  });
  return details;
}

export function flagList(words, none = "vLLM's defaults") {
  return h("span.flags", {}, words.length ? words.map((word) => h("span", {}, word)) : h("span", {}, none));
}
