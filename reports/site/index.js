// The search field of the site: its words stand in the address.
"use strict";
addEventListener("DOMContentLoaded", () => {
  const field = document.getElementById("find");
  const find = () => {
    const models = findModels(field.value);
    document.getElementById("found").textContent =
      field.value && `${models} ${models === 1 ? "model" : "models"}`;
    history.replaceState(null, "", field.value ? "#?q=" + encodeURIComponent(field.value) : "#");
  };
  field.addEventListener("input", find);
  field.value = new URLSearchParams(location.hash.slice(2)).get("q") ?? "";
  if (field.value) find();
});
