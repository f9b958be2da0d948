// Starts the page of a report's file: everything is inside, nothing is asked of anybody.

import { h } from "./dom.js";
import { EmbeddedSource } from "./source.js";
import { studyPage } from "./study.js";
import { themeButton } from "./theme.js";
import { promotionRecords } from "./promotions.js";

async function startReport() {
  const data = JSON.parse(document.getElementById("autotune-data").textContent);
  const source = new EmbeddedSource(data);
  document.getElementById("top").append(h("span.name", {}, "autotune report"), h("nav", { "aria-label": "Parts of the page" }, [["front", "main"], ["growth", "growth"], ["flags", "knobs"], ["configs", "configs"], ["load", "curves"], ["servers", "servers"], ["failures", "failed"], ["launches", "launches"]].map(([word, id]) => h("a", { href: `#${id}` }, word))), themeButton());
  const main = document.getElementById("main");
  const page = await studyPage(main, data.study, source, {
    footer: () => [h("span", {}, `autotune ${data.version}, report written ${data.written_at}`), h("span", {}, "This file is complete: it loads nothing from anywhere.")],
  });
  await page.parts;
  for (const link of document.querySelectorAll("#top nav a")) link.hidden = document.getElementById(link.hash.slice(1))?.closest("[hidden]") !== null;
  const promoted = await source.promotions();
  if (promoted.length) main.querySelector("footer").before(promotionRecords(promoted));
}

startReport();
