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
        about.querySelector(".reasons").prepend(...about.querySelectorAll(`.cause[data-runtime="${runtime}"]`));
        if (own.getBoundingClientRect().top > innerHeight - 120) own.querySelector("h3").scrollIntoView({ block: "center" });
      }
      for (const button of table.querySelectorAll(`[aria-controls="${id}"]`)) {
        button.setAttribute("aria-expanded", String(!about.hidden));
      }
    });
  }
});

// Shows the rows that a search means, and the columns if it names runtimes; returns of how many models they are.
// `conformance/report/model_query.py` describes the rules, and has the words with a meaning of their own.
function findModels(text) {
  const table = document.querySelector("table.models");
  if (!table) return 0;
  const { types, runtimes, ignored } = JSON.parse(table.dataset.rules);
  const releases = table.dataset.releases.split(" ");
  const plain = (some) => some.toLowerCase().replace(/[^a-z0-9]/g, "");
  const id = text.toLowerCase().replace(/(?<!\S)[\w.-]+\/(?=[\w.-]+(?!\S))/g, "").replace(/\b([48])[ -]bits?\b/g, "$1bit");
  const words = id.split(/[\s/@+_,-]+/).filter((word) => plain(word) && !Object.hasOwn(ignored, word));
  const families = [...table.querySelectorAll(".family")];
  // The first words name a model, as far as one has them.
  let [named, rest] = [families, words];
  for (let n = words.length; n > 0 && rest === words; n--) {
    const start = plain(words.slice(0, n).join(""));
    const found = families.filter((family) => plain(family.dataset.name).includes(start));
    if (found.length) [named, rest] = [found, words.slice(n)];
  }
  const own = words.length <= 8; // or it is a message
  const meant = (of) => (own ? rest.filter((word) => Object.hasOwn(of, word)).map((word) => of[word]) : []);
  const isRelease = (word) => word.includes(".") && releases.some((one) => `${one}.`.startsWith(`${word}.`));
  const others = rest.filter((word) => !own || !(Object.hasOwn(types, word) || Object.hasOwn(runtimes, word) || isRelease(word)));
  const [wanted, columns] = [meant(types), meant(runtimes)];
  let rows = named
    .flatMap((family) => [...family.querySelectorAll(".exported")])
    .filter((row) => wanted.every((type) => row.dataset.types.split(" ").includes(type)))
    .filter((row) => others.every((word) => plain(row.dataset.words).includes(plain(word))));
  const made = rows.filter((row) => columns.includes(row.dataset.for));
  if (made.length) rows = made;
  const cells = [...table.querySelectorAll("thead [data-runtime], .exported > [data-runtime]")];
  const chosen = ({ dataset }) => columns.includes(dataset.runtime.split("+")[0]);
  const choose = cells.some(chosen);
  for (const cell of cells) cell.hidden = choose && !chosen(cell);
  for (const family of families) {
    const own = [...family.querySelectorAll(".exported")];
    for (const row of own) {
      row.hidden = !rows.includes(row);
      const unfold = row.querySelector(".unfold");
      row.nextElementSibling.hidden = row.hidden || unfold.getAttribute("aria-expanded") !== "true";
    }
    const first = own.find((row) => !row.hidden);
    first?.prepend(family.querySelector("[scope=rowgroup]"));
    family.hidden = !first;
  }
  const shown = families.filter((family) => !family.hidden).length;
  const none = document.getElementById("no-models");
  if (none) none.hidden = shown > 0;
  return shown;
}
