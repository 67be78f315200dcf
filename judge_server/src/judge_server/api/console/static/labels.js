// Keys of pages with labels: y and n answer; j and k go on and back, in the queue or between the verdicts of a page.
"use strict";

const questions = () => [...document.querySelectorAll("form.label")];

function answer(value) {
  const forms = questions();
  const form = document.activeElement?.closest("form.label") ?? (forms.length === 1 ? forms[0] : null);
  form?.querySelector(`button[name="met"][value="${value}"]`)?.click();
  return form !== null;
}

function go(forward) {
  const link = document.querySelector(`nav.pages a[rel="${forward ? "next" : "prev"}"] kbd`);
  if (link) {
    link.parentElement.click();
    return true;
  }
  const forms = questions();
  if (forms.length < 2) return false;
  const here = forms.indexOf(document.activeElement?.closest("form.label"));
  const place = here < 0 ? (forward ? 0 : forms.length - 1) : here + (forward ? 1 : -1);
  const form = forms[Math.min(forms.length - 1, Math.max(0, place))];
  form.closest("details")?.setAttribute("open", "");
  form.focus({ preventScroll: true });
  form.scrollIntoView({ block: "center" });
  return true;
}

const KEYS = { y: () => answer("yes"), n: () => answer("no"), j: () => go(true), k: () => go(false) };

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || event.isComposing) return;
  if (event.target.closest?.("input, select, textarea, [contenteditable]")) return;
  if (KEYS[event.key]?.()) event.preventDefault();
});
