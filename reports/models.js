// The table of models: rows unfold, and a search field shows those with all its words.
"use strict";
addEventListener("DOMContentLoaded", () => {
  for (const button of document.querySelectorAll(".models .unfold")) {
    button.addEventListener("click", () => {
      const about = document.getElementById(button.getAttribute("aria-controls"));
      about.hidden = !about.hidden;
      button.setAttribute("aria-expanded", String(!about.hidden));
    });
  }
});

// Shows the models that have each of the words; returns how many there are.
function findModels(text) {
  const plain = (words) => words.toLowerCase().replace(/[^a-z0-9 ]/g, "");
  const squeezed = plain(text).replaceAll(" ", "");
  const words = plain(text).split(" ").filter(Boolean);
  let shown = 0;
  for (const family of document.querySelectorAll(".models .family")) {
    const named = plain(family.querySelector("[scope=rowgroup]").textContent).replaceAll(" ", "");
    let any = false;
    for (const row of family.querySelectorAll(".model")) {
      const own = plain(row.dataset.words);
      row.dataset.found = named.includes(squeezed) || words.every((word) => own.includes(word));
      any ||= row.dataset.found === "true";
    }
    family.hidden = !any;
    shown += any;
  }
  const none = document.getElementById("no-models");
  if (none) none.hidden = shown > 0;
  return shown;
}
