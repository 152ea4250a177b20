// A published page: says how old its results are once they are too old to be relied on.
"use strict";
{
  const DAY = 24 * 3600 * 1000; // ms
  const EVERY = 3600 * 1000; // ms

  function tellAge() {
    const banner = document.getElementById("stale");
    const days = Math.floor((Date.now() - Date.parse(banner.dataset.taken)) / DAY);
    banner.hidden = !(days > Number(banner.dataset.days)); // also where the date cannot be read
    banner.querySelector(".age").textContent = `${days} days ago`;
  }

  document.addEventListener("DOMContentLoaded", () => {
    tellAge();
    setInterval(tellAge, EVERY);
  });
}
