// The search field of the site: its words stand in the address. It finds models and findings, and
// the report has the rest.
"use strict";
addEventListener("DOMContentLoaded", () => {
  const field = document.getElementById("find");
  const list = document.getElementById("findings");
  const order = [...list.children];
  const find = () => {
    const models = findModels(field.value);
    const meanings = showMeanings(field.value);
    const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
    const words = searchTerms(field.value);
    const has = (text) => words.filter((word) => text.includes(word)).length;
    const scores = new Map(
      order.map((finding) => {
        const heading = finding.textContent.toLowerCase();
        return [finding, has(`${heading} ${finding.dataset.words}`) + has(heading) / 100];
      }),
    );
    // Of many words, as in a message, half are enough if no finding has more of them.
    const best = Math.floor(Math.max(...scores.values()));
    const enough = words.length > 3 ? Math.max(best, words.length / 2) : words.length;
    let found = 0;
    for (const finding of order) {
      finding.hidden = scores.get(finding) < enough;
      if (!finding.hidden) found += 1;
    }
    list.append(...order.toSorted((a, b) => scores.get(b) - scores.get(a)));
    document.getElementById("found").textContent =
      field.value && `${meanings ? `${count(meanings, "explanation")}, ` : ""}${count(models, "model")}, ${count(found, "finding")}`;
    const report = document.getElementById("in-report");
    report.hidden = !field.value;
    report.href = `report.html#?q=${encodeURIComponent(field.value)}`;
  };
  let typing = false; // what is typed is one entry of the history
  const read = () => {
    typing = false;
    field.value = new URLSearchParams(location.hash.slice(2)).get("q") ?? "";
    find();
  };
  field.addEventListener("input", () => {
    find();
    history[typing ? "replaceState" : "pushState"](null, "", field.value ? "#?q=" + encodeURIComponent(field.value) : "#");
    typing = true;
  });
  field.addEventListener("change", () => (typing = false));
  addEventListener("hashchange", read);
  read();
});
