// The theme is a plain cookie, so that the server renders the next page in it at once.
import { all, el, root } from "./dom";

const THEMES = ["auto", "light", "dark"] as const;
type Theme = (typeof THEMES)[number];

function current(): Theme {
  const found = document.documentElement.dataset["theme"];
  return THEMES.find((theme) => theme === found) ?? "auto";
}

/** Call when the page turns light or dark. Returns the way to stop. */
export function onTheme(changed: () => void): () => void {
  const media = matchMedia("(prefers-color-scheme: dark)");
  media.addEventListener("change", changed);
  document.addEventListener("sooner:theme", changed);
  return () => {
    media.removeEventListener("change", changed);
    document.removeEventListener("sooner:theme", changed);
  };
}

function label(button: HTMLElement): void {
  const theme = current();
  button.replaceChildren(
    el("span", { "aria-hidden": "true" }, { auto: "◐", light: "☀", dark: "☾" }[theme]),
    el("span", { class: "visually-hidden" }, `Theme: ${theme}`),
  );
  button.title = `Theme: ${theme}`;
}

export function installTheme(): void {
  const saved = /(?:^|; )sooner_theme=(auto|light|dark)/.exec(document.cookie)?.[1];
  if (saved) document.documentElement.dataset["theme"] = saved;
  for (const button of all(document, "[data-theme-toggle]")) {
    label(button);
    button.addEventListener("click", () => {
      const next = THEMES[(THEMES.indexOf(current()) + 1) % THEMES.length] ?? "auto";
      document.documentElement.dataset["theme"] = next;
      document.cookie = `sooner_theme=${next}; Path=${root().pathname}; Max-Age=31536000; SameSite=Lax`;
      label(button);
      document.dispatchEvent(new Event("sooner:theme"));
    });
  }
}
