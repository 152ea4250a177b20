// Reloads a page whose file is rewritten while results come. Keeps the address, the scroll positions
// and the text that was typed.
"use strict";
{
  const EVERY = 5000; // ms
  const KEPT = "gqa-reload";

  /** Whether a reload would interrupt the user. */
  function busy() {
    if (document.hidden) return true; // not visible, and a reload takes time from the run
    if (getSelection()?.type === "Range") return true;
    return document.activeElement?.matches("input, textarea, select, [contenteditable], :focus-visible") ?? false;
  }

  function saveState() {
    const scrolled = [...document.querySelectorAll("[id]")]
      .filter((element) => element.scrollTop || element.scrollLeft)
      .map((element) => [element.id, element.scrollLeft, element.scrollTop]);
    const typed = [...document.querySelectorAll("input[id], textarea[id], select[id]")]
      .map((control) => [control.id, control.value, control.checked ?? false]);
    const { scrollX, scrollY } = window;
    try {
      sessionStorage.setItem(KEPT, JSON.stringify({ scrollX, scrollY, scrolled, typed }));
    } catch {
      // storage is forbidden or full: reload without it
    }
  }

  function restoreState() {
    let kept;
    try {
      kept = JSON.parse(sessionStorage.getItem(KEPT));
      sessionStorage.removeItem(KEPT);
    } catch {
      return;
    }
    if (!kept) return;
    for (const [id, value, checked] of kept.typed) {
      const control = document.getElementById(id);
      if (!control || (control.value === value && (control.checked ?? false) === checked)) continue;
      control.value = value;
      if ("checked" in control) control.checked = checked;
      for (const kind of ["input", "change"]) control.dispatchEvent(new Event(kind, { bubbles: true }));
    }
    for (const [id, left, top] of kept.scrolled) {
      document.getElementById(id)?.scrollTo({ left, top, behavior: "instant" });
    }
    scrollTo({ left: kept.scrollX, top: kept.scrollY, behavior: "instant" });
  }

  /** How long to wait, in ms: longer for a large page. */
  function pause() {
    const [load] = performance.getEntriesByType("navigation");
    return Math.max(EVERY, 4 * (load ? load.loadEventStart : 0));
  }

  function reload() {
    if (busy()) {
      setTimeout(reload, EVERY);
    } else {
      saveState();
      location.reload();
    }
  }

  // After the page's own scripts, which apply the fragment.
  addEventListener("load", () => {
    const { classList } = document.documentElement;
    if (classList.contains("js") && !classList.contains("ready")) {
      document.addEventListener("ready", restoreState, { once: true });
    } else {
      restoreState();
    }
    setTimeout(reload, pause());
  });
}
