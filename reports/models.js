// The table of models, whose rows unfold, and what is searched for in it and elsewhere.
"use strict";
addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("table.models")) {
    table.addEventListener("click", (event) => {
      const id = event.target.closest("[aria-controls]")?.getAttribute("aria-controls");
      if (!id) return;
      const about = document.getElementById(id);
      // A cell shows its runtime first; another cell of an unfolded row does not fold it.
      const runtime = event.target.closest("td")?.dataset.runtime;
      about.hidden = !about.hidden && (runtime == null || about.dataset.first === runtime);
      if (runtime != null && !about.hidden) {
        about.dataset.first = runtime;
        const own = about.querySelector(`section[data-runtime="${runtime}"]`);
        own.parentElement.prepend(own);
        if (own.getBoundingClientRect().top > innerHeight - 120) own.querySelector("h3").scrollIntoView({ block: "center" });
      }
      for (const button of table.querySelectorAll(`[aria-controls="${id}"]`)) {
        button.setAttribute("aria-expanded", String(!about.hidden));
      }
    });
  }
});

/**
 * The search terms of a text: words in any order, and quoted phrases. Of a pasted message only the words: its numbers and
 * the names of nodes are those of another call.
 */
function searchTerms(text) {
  const terms = [...text.toLowerCase().matchAll(/"([^"]+)"?|\S+/g)].map(([word, quoted]) => quoted ?? word);
  if (terms.length < 6) return terms;
  return text.toLowerCase().replace(/^.*status message:/s, "").match(/(?<![\w/])[a-z_]{3,}(?!\w)/g) ?? terms;
}

// Shows the rows that have each of the words; returns of how many models they are. Case, spaces and
// points do not count.
function findModels(text) {
  const plain = (some) => some.toLowerCase().replace(/[^a-z0-9]/g, "");
  const words = text.split(/\s+/).map(plain).filter(Boolean);
  const families = [...document.querySelectorAll(".models .family")];
  // The first words name a model, as far as one has them: the others must be in its row.
  let [named, rest] = [families, words];
  for (let n = words.length; n > 0 && rest === words; n--) {
    const start = words.slice(0, n).join("");
    const found = families.filter((family) => plain(family.dataset.name).includes(start));
    if (found.length) [named, rest] = [found, words.slice(n)];
  }
  for (const family of families) {
    const rows = [...family.querySelectorAll(".exported")];
    for (const row of rows) {
      const own = plain(row.dataset.words);
      row.hidden = !named.includes(family) || !rest.every((word) => own.includes(word));
      const unfold = row.querySelector(".unfold");
      row.nextElementSibling.hidden = row.hidden || unfold.getAttribute("aria-expanded") !== "true";
    }
    const first = rows.find((row) => !row.hidden);
    first?.prepend(family.querySelector("[scope=rowgroup]"));
    family.hidden = !first;
  }
  const shown = families.filter((family) => !family.hidden).length;
  const none = document.getElementById("no-models");
  if (none) none.hidden = shown > 0;
  return shown;
}
