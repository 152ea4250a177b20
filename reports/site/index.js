// The search field of the site: its words stand in the address. It finds models and findings, and
// the report has the rest.
"use strict";
addEventListener("DOMContentLoaded", () => {
  const field = document.getElementById("find");
  const find = () => {
    const models = findModels(field.value);
    const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let found = 0;
    for (const finding of document.querySelectorAll("#findings > li")) {
      const text = `${finding.textContent.toLowerCase()} ${finding.dataset.words}`;
      finding.hidden = !words.every((word) => text.includes(word));
      if (!finding.hidden) found += 1;
    }
    document.getElementById("found").textContent =
      field.value && `${count(models, "model")}, ${count(found, "finding")}`;
    const report = document.getElementById("in-report");
    report.hidden = !field.value;
    report.href = `report.html#?q=${encodeURIComponent(field.value)}`;
    history.replaceState(null, "", field.value ? "#?q=" + encodeURIComponent(field.value) : "#");
  };
  field.addEventListener("input", find);
  field.value = new URLSearchParams(location.hash.slice(2)).get("q") ?? "";
  if (field.value) find();
});
